"""Choice of the connections that an engine drives: calls of applications, shared turns."""

import pytest

from lab.c_programs import RACES, SANITIZED, build, run

SOURCES = ["tests/cnet/engine/test_schedule.c", "cnet/base/timer_heap.c", "cnet/engine/schedule.c"]


@pytest.mark.parametrize("flags", [SANITIZED, RACES], ids=["asan", "tsan"])
def test_schedule(tmp_path, flags):
    run(build(tmp_path / "schedule", SOURCES, flags))
