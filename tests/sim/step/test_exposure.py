"""Exposed time of a step, by cause."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.records.results import Span
from sim.step.exposure import exposed


def span(kind, start_s, end_s):
    return Span("net", "x", kind, start_s, end_s)


def test_exposed_time_goes_to_one_cause_each():
    spans = (span("latency", 0, 4), span("transfer", 2, 3), span("selection", 3.5, 5),
             span("negotiation", 5, 6))
    assert exposed(spans, 1, 8) == pytest.approx(
        {"transfer": 1, "selection": 1.5, "latency": 1.5, "message": 3})


@given(st.lists(st.tuples(st.sampled_from(["transfer", "latency", "message", "selection"]),
                          st.integers(0, 20), st.integers(0, 10))), st.integers(0, 20),
       st.integers(0, 10))
def test_exposed_parts_add_up(spans, start_s, seconds):
    parts = exposed(tuple(span(kind, at, at + long) for kind, at, long in spans), start_s,
                    start_s + seconds)
    assert sum(parts.values()) == pytest.approx(seconds)
