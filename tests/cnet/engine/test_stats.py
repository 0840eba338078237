"""An engine's counters and flight recorder, read from outside."""

import pytest

from lab.c_programs import RACES, SANITIZED, build, library, run
from tests.support.levels import long_except


@pytest.mark.parametrize("flags", long_except([SANITIZED, RACES], SANITIZED), ids=["asan", "tsan"])
def test_stats_and_recorder(tmp_path, flags):
    sources = ["tests/cnet/engine/test_stats.c", str(library(flags))]
    lines = run(build(tmp_path / "stats", sources, flags)).splitlines()
    assert lines[0].split(" s  ")[1] == "00000001 port opened: port 2, payload_max 3"
    assert "does not know" in lines[-1]
