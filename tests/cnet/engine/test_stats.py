"""An engine's counters and flight recorder, read from outside."""

from lab.c_programs import RACES, SANITIZED, build, library, run


def test_stats_and_recorder(tmp_path):
    for name, flags in [("asan", SANITIZED), ("tsan", RACES)]:
        sources = ["tests/cnet/engine/test_stats.c", str(library(flags))]
        lines = run(build(tmp_path / name, sources, flags)).splitlines()
        assert lines[0].split(" s  ")[1] == "00000001 port opened: port 2, payload_max 3"
        assert "does not know" in lines[-1]
