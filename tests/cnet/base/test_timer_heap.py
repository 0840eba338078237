"""A heap of deadlines."""

from lab.c_programs import build, library, run


def test_timers_are_taken_in_order(tmp_path):
    run(build(tmp_path / "timers", ["tests/cnet/base/test_timer_heap.c", str(library())]))
