"""A figure of ours beside what others found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.records.reference_rows import JUMBO_HARP, JUMBO_TCP, TOLERANCE, Row, Wire, time_row


def row(ours: float, low: float, high: float) -> Row:
    return Row("case", "figure", ours, low, high, "us", "source")


@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.1, 10))
def test_an_error_is_the_distance_to_the_nearest_bound(ours: float, one: float,
                                                       other: float) -> None:
    low, high = sorted((one, other))
    found = row(ours, low, high)
    nearest = low if ours < low else high if ours > high else ours
    assert found.error == pytest.approx(ours / nearest - 1)
    assert found.off == (abs(found.error) > TOLERANCE)
    assert (found.error == 0) == (low <= ours <= high)


@pytest.mark.parametrize(("ours", "off"), [
    (1.09, False), (1.11, True), (0.91, False), (0.89, True)])
def test_a_row_is_off_beyond_its_tolerance(ours: float, off: bool) -> None:
    assert row(ours, 1.0, 1.0).off is off


@given(st.sampled_from([JUMBO_HARP, JUMBO_TCP, Wire(1000, 50)]), st.integers(1, 10**6))
def test_a_message_takes_its_bytes_and_headers_of_its_frames(wire: Wire, nbytes: int) -> None:
    frames = -(-nbytes // wire.payload)
    assert wire.on_line(nbytes) == nbytes + frames * wire.headers
    assert wire.on_line(frames * wire.payload) == frames * wire.whole


def test_a_message_of_nothing_takes_nothing() -> None:
    assert JUMBO_TCP.on_line(0) == 0


def test_times_stand_in_microseconds() -> None:
    made = time_row("case", "alpha + S / R", 2e-6, 1e-6, "source")
    assert (made.ours, made.low, made.high, made.unit) == (2.0, 1.0, 1.0, "us")
    assert made.error == pytest.approx(1.0)
