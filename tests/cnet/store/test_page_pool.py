"""Pages of memory, under sanitizers."""

from __future__ import annotations

import pytest

from lab.c_programs import RACES, SANITIZED, build, run
from tests.support.levels import long_except

SOURCES = ["tests/cnet/store/test_page_pool.c", "cnet/store/page_pool.c", "cnet/base/cgroup.c",
           "cnet/base/node_cpus.c"]


@pytest.mark.parametrize("flags", long_except([SANITIZED, RACES], SANITIZED),
                         ids=["asan", "tsan"])
def test_pages_of_memory(tmp_path, flags):
    run(build(tmp_path / "pool", SOURCES, flags))
