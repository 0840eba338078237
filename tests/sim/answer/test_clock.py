"""Clocks that count the events of a simulation."""

from __future__ import annotations

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from sim.answer.clock import Clock, Recorder, TooLongError


def ticking(env: simpy.Environment, seconds: float):
    while True:
        yield env.timeout(seconds)


@given(st.integers(0, 50))
def test_a_simulation_without_end_ends_with_its_time(most: int) -> None:
    """Two events are the process's own begin and its first tick; then each second has one."""
    clock = Clock(most)
    clock.process(ticking(clock, 1.0))
    with pytest.raises(TooLongError, match=f"^{most} events by {max(most - 1, 0)} s$"):
        clock.run()
    assert clock.events == most + 1


def test_a_simulation_within_its_limit_is_simpys_own() -> None:
    for env in (simpy.Environment(), Clock(), Recorder()):
        env.process(ticking(env, 0.25))
        env.run(until=2)
        assert env.now == 2


@given(st.lists(st.floats(0, 100), max_size=8))
def test_a_recorder_has_the_times_of_all_events(seconds: list[float]) -> None:
    recorder = Recorder()
    for wait in seconds:
        recorder.timeout(wait)
    for _ in seconds:
        recorder.step()
    assert recorder.times == sorted(seconds)
    assert recorder.events == len(seconds)
