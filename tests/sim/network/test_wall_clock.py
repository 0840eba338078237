"""The clock of the laboratory: simpy's, tied to the wall clock."""

from __future__ import annotations

import os
import time

import pytest
import simpy

from sim.network.wall_clock import WallClock


def test_an_event_comes_no_earlier_than_its_time_by_the_scale():
    """A simulated second is a thousand times as long: 5 us take 5 ms at least."""
    clock, ends_s = WallClock(scale=1e-3), []

    def wait():
        for _ in range(3):
            yield clock.timeout(5e-6)
            ends_s.append((clock.now, time.monotonic()))

    clock.process(wait())
    began_s = time.monotonic()
    clock.run()
    for number, (now_s, wall_s) in enumerate(ends_s, 1):
        assert now_s == pytest.approx(number * 5e-6)
        assert wall_s - began_s >= number * 5e-3


def pass_time(seconds: float) -> float:
    """Be busy, and say for how long."""
    began_s = time.monotonic()
    while (passed_s := time.monotonic() - began_s) < seconds:
        pass
    return passed_s


@pytest.fixture
def woken():
    """Give a clock that a file wakes, the file's writer, and the event that its bytes bring."""
    clock, (out, into) = WallClock(scale=1.0), os.pipe()
    came = clock.event()
    with os.fdopen(out, "rb", 0) as reader, os.fdopen(into, "wb", 0) as writer:
        clock.watch(reader, lambda: came.succeed(reader.read(5)))
        yield clock, writer, came


def test_a_file_that_becomes_readable_wakes_the_clock_before_its_next_event(woken):
    clock, writer, came = woken
    writer.write(b"hello")
    clock.timeout(3600)
    assert clock.run(until=came) == b"hello"
    assert clock.now < 3600


def test_time_between_runs_does_not_count(woken):
    clock, writer, came = woken
    began_s = time.monotonic()
    clock.run(until=1e-3)
    between_s = pass_time(0.02)
    writer.write(b"hello")
    clock.run(until=came)
    assert 1e-3 <= clock.now <= time.monotonic() - began_s - between_s


def test_time_for_which_the_clock_is_held_does_not_count(woken):
    clock, writer, came = woken
    held_s = []

    def hold():
        yield clock.timeout(1e-3)
        with clock.held():
            held_s.append(pass_time(0.02))
        writer.write(b"hello")

    clock.process(hold())
    began_s = time.monotonic()
    clock.run(until=came)
    assert 1e-3 <= clock.now <= time.monotonic() - began_s - held_s[0]


def test_nothing_left_ends_the_run_as_in_simpy():
    clock = WallClock(scale=1.0)
    clock.run()
    assert clock.now == 0
    with pytest.raises(RuntimeError, match="No scheduled events left"):
        clock.run(until=simpy.Event(clock))
