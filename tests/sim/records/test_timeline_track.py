"""One track of a job's timeline."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from sim.records.timeline_track import Timeline

if TYPE_CHECKING:
    from sim.records.results import Span


def track() -> tuple[simpy.Environment, Timeline, list[Span]]:
    spans: list[Span] = []
    env = simpy.Environment()
    return env, Timeline(env, spans.append, "h/gpu0"), spans


@given(st.lists(st.floats(0, 10), min_size=1, max_size=6))
def test_waits_follow_one_another_and_take_their_time(waits: list[float]) -> None:
    env, line, spans = track()

    def job():
        for number, seconds in enumerate(waits):
            yield from line.wait(seconds, "forward", str(number))

    env.run(env.process(job()))
    assert env.now == pytest.approx(sum(waits))
    assert sum(span.end_s - span.start_s for span in spans) == pytest.approx(sum(waits))
    assert all(one.end_s == other.start_s for one, other in pairwise(spans))
    assert {span.track for span in spans} <= {"h/gpu0"}
    assert all(span.end_s > span.start_s for span in spans)


def test_a_transfer_has_a_span_for_each_of_its_limits() -> None:
    """The first counts from the beginning on, and one that never held has no span."""
    env, line, spans = track()
    env.run(until=9)
    line.transfer("b", 1, [(2, "NIC"), (4, "spine"), (4, "cores"), (9, "never")])
    assert [(span.start_s, span.end_s, span.limit) for span in spans] == [
        (1, 4, "NIC"), (4, 9, "cores")]
    assert {(span.name, span.kind) for span in spans} == {("b", "transfer")}


def test_a_transfer_without_a_limit_is_one_span() -> None:
    env, line, spans = track()
    env.run(until=3)
    line.transfer("b", 1, [])
    assert [(span.start_s, span.end_s, span.limit) for span in spans] == [(1, 3, "")]


def test_what_begins_and_ends_at_once_is_not_recorded() -> None:
    env, line, spans = track()
    env.run(until=3)
    line.span("x", "update", 3)
    line.span("y", "update", 2)
    assert [(span.name, span.start_s, span.end_s) for span in spans] == [("y", 2, 3)]
