"""Records of a simulation, and what follows from their numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.records.results import (
    Breakdown,
    CollectiveRow,
    Cost,
    Expectation,
    Interval,
    LinkUse,
    Memory,
    ScenarioResult,
    Span,
    TimeInterval,
)

PARTS = st.lists(st.floats(0, 100), min_size=5, max_size=5)
ROW = ScenarioResult("s", 8, "", 100.0, 2.0, Breakdown(1.5, 0.5, 0, 0, 0))


@given(PARTS)
def test_parts_add_up_to_the_step_and_all_but_compute_is_exposed(parts: list[float]) -> None:
    made = Breakdown(*parts)
    assert made.step_s == pytest.approx(sum(parts))
    assert made.exposed_s == pytest.approx(sum(parts[1:]), abs=1e-9)


def test_activations_that_are_not_known_count_nothing() -> None:
    assert Memory(1, 2, 3, 4, 5).total == 15
    assert Memory(1, 2, 3, None, 5).total == 11


@given(st.floats(0.01, 1e3), st.floats(0, 1e9))
def test_a_cost_is_by_the_hour(hour: float, seconds: float) -> None:
    cost = Cost("EUR", hour)
    assert cost.of(3600) == pytest.approx(hour)
    assert cost.day == pytest.approx(cost.of(86400))
    assert cost.of(seconds) == pytest.approx(hour * seconds / 3600)


def test_the_time_of_a_training_falls_as_the_rate_grows() -> None:
    interval = Interval(50.0, 100.0, 200.0, 0, 0, 0, 24)
    row = replace(ROW, interval=interval, cost=Cost("EUR", 1.0, samples=1e4))
    assert row.whole_s == (100.0, 50.0, 200.0)
    assert replace(row, interval=None).whole_s == (100.0,)
    assert replace(row, images_per_s=0.0, interval=None).whole_s == (math.inf,)
    assert ROW.whole_s == replace(row, cost=Cost("EUR", 1.0)).whole_s == ()


def test_the_timeline_is_that_of_its_spans_and_else_the_mean_step() -> None:
    spans = (Span("h/gpu0", "f", "forward", 3.0, 4.0), Span("h/gpu0", "b", "backward", 4.0, 6.5))
    links = LinkUse(("a",), np.array([1.0, 2.0]), np.array([[0.5]]))
    shown = [(row.start_s, row.shown_s) for row in (
        replace(ROW, spans=spans, links=links), replace(ROW, links=links), ROW)]
    assert shown == [(3.0, 3.5), (1.0, 2.0), (0.0, 2.0)]


@given(st.floats(1, 1e6), st.floats(1, 1e6))
def test_an_expected_rate_leaves_what_compute_does_not_take(ours: float, theirs: float) -> None:
    row = replace(ROW, images_per_s=ours, expect=Expectation(theirs, "published", 0.1, "x"))
    assert row.error == pytest.approx(ours / theirs - 1)
    samples = ours * row.step_s
    assert row.expected_exposed_s == pytest.approx(samples / theirs - row.breakdown.compute_s)
    assert (ROW.error, ROW.expected_exposed_s) == (None, None)


def test_bus_bandwidth_has_the_interval_of_the_time_turned_over() -> None:
    row = CollectiveRow("ring", 1000, 250, 2.0, 500.0, 750.0,
                        interval=TimeInterval(1.0, 2.0, 4.0, 24))
    assert row.busbw_interval == (375.0, 750.0, 1500.0)
    assert replace(row, interval=None).busbw_interval is None
