"""Links with faults, and the keys of a session's two ends."""

from __future__ import annotations

import pytest

from lab.c_programs import SANITIZED, build, run
from tests.dst.dst_programs import driver_sources
from tests.support import ROOT


@pytest.mark.long
def test_links_and_keys(tmp_path):
    run(build(tmp_path / "faults", ["tests/dst/parts/test_faults.c", "tests/dst/faults.c",
                                    "tests/dst/end_keys.c", "cnet/virtual/session_ends.c",
                                    *driver_sources()], [*SANITIZED, f"-I{ROOT / 'tests/dst'}"]))
