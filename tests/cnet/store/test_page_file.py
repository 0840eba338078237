"""Pages on disk, in C, under sanitizers."""

from __future__ import annotations

import pytest

from lab.c_programs import RACES, SANITIZED, build, run
from tests.support.levels import long_except

SOURCES = ["tests/cnet/store/test_page_file.c", "cnet/store/page_file.c",
           "cnet/store/page_pool.c", "cnet/store/ring_io.c", "cnet/store/thread_io.c",
           "cnet/base/cgroup.c", "cnet/base/node_cpus.c"]


@pytest.mark.parametrize("io", ["ring", "threads"])
@pytest.mark.parametrize("flags", long_except([SANITIZED, RACES], SANITIZED),
                         ids=["asan", "tsan"])
def test_pages_on_disk(tmp_path, flags, io):
    wrapped = [*flags, "-Wl,--wrap=syscall,--wrap=open"]  # counted, or refused
    run(build(tmp_path / "store", SOURCES, wrapped), str(tmp_path), io)
