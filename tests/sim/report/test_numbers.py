"""Numbers as people read them in plots and tables."""

from __future__ import annotations

import pytest

from sim.report.numbers import milliseconds


@pytest.mark.parametrize(("value_s", "text"), [
    (0.0248137, "24.81 ms"), (2.4921, "2492 ms"), (9.99949, "9999 ms"), (9.99951, "10000 ms"),
    (294.160846, "294161 ms"), (0, "0 ms"), (1.5e-6, "0.0015 ms")])
def test_a_time_has_no_exponent(value_s: float, text: str) -> None:
    assert milliseconds(value_s) == text
