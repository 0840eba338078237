"""Margins that move P10, P50 and P90 of a speed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.answer.margins import COLLECTIVES, TRAINING, Margin

SPEEDS = st.lists(st.floats(1e-3, 1e12), min_size=3, max_size=3).map(sorted)


@given(SPEEDS, st.floats(0, 3), st.floats(-3, 3), st.floats(0, 3))
def test_a_margin_widens_and_keeps_the_order(speeds, below, middle, above) -> None:
    low, median, high = Margin(below, middle, above).move(*speeds)
    assert low == pytest.approx(speeds[0] * math.exp(-below))
    assert high == pytest.approx(speeds[2] * math.exp(above))
    assert low <= median <= high
    wanted = speeds[1] * math.exp(middle)
    if low < wanted < high:
        assert median == pytest.approx(wanted)


@given(SPEEDS)
def test_no_margin_moves_nothing(speeds) -> None:
    assert Margin(0.0, 0.0, 0.0).move(*speeds) == tuple(speeds)


@pytest.mark.parametrize("margin", [TRAINING, COLLECTIVES])
def test_shipped_margins_widen_and_make_predictions_slower(margin: Margin) -> None:
    """Most published figures are slower than simulated ones, so P50 moves down."""
    assert margin.below >= 0 <= margin.above
    assert margin.middle <= 0
