"""Formats of numbers for people and programs, shared by all outputs.

Programs get nine significant digits, more than any model of a network is worth and few enough that
the last bits of floating-point arithmetic do not show. People get parts that add up to their total
as printed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sim.records.results import ScenarioResult

SIGNIFICANT_DIGITS = 9
DAY_S = 86400.0


def rounded(value: float | None) -> float | None:
    """``value`` at nine significant digits; None for None, infinities and NaN (JSON has none)."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}") + 0.0  # + 0.0 turns -0.0 into 0.0


def rounded_difference(value: float) -> float | None:
    """Round likewise, but to zero below 1e-9: that is what floating point leaves of zero."""
    return rounded(round(value, 9) if math.isfinite(value) else value)


def rate(value: float) -> str:
    """Write a rate for people: whole from 100 up, three significant digits below."""
    return f"{value:.0f}" if value >= 99.95 or value == 0 else f"{value:.3g}"


def rate_unit(rows: Iterable[ScenarioResult]) -> str:
    """Name the unit of rows' rates: a sample of text is no image."""
    return "images/s" if all(row.tokens_per_s is None for row in rows) else "samples/s"


def milliseconds(value_s: float) -> str:
    """Seconds as ``24.81 ms``: four significant digits, and whole above them, as ``294161 ms``."""
    value = value_s * 1e3
    return f"{value:.0f} ms" if value >= 9999.5 else f"{value:.4g} ms"


def percent(share: float, *, sign: bool = False, decimals: int = 0) -> str:
    """Write a share as ``88 %``, or with its sign as ``+1.2 %``."""
    text = f"{100 * share:{'+' if sign else ''}.{decimals}f}"
    if sign and float(text) == 0:
        text = text.replace("-", "+")
    return f"{text} %"


def milliseconds_decimals(shortest_s: float) -> int:
    """Decimals that show a step of ``shortest_s`` at three significant digits or more."""
    if not math.isfinite(shortest_s) or shortest_s >= 0.01:
        return 1
    return 3 if shortest_s >= 1e-4 else 6


def shown_ms(step_s: float, compute_s: float, others_s: Sequence[float],
             decimals: int) -> list[str]:
    """Milliseconds of a step, its compute and its other parts, such that parts add up as shown.

    Step and compute are rounded; the other parts share what is left between the two.
    """
    if not math.isfinite(step_s):
        return [f"{value * 1e3:.{decimals}f}" for value in (step_s, compute_s, *others_s)]
    unit = 10 ** (3 + decimals)
    step, compute = round(step_s * unit), round(compute_s * unit)
    values = [step, compute, *apportion(others_s, step - compute)]
    return [f"{value / 10 ** decimals:.{decimals}f}" for value in values]


def apportion(parts: Sequence[float], units: int) -> list[int]:
    """Integers in the proportion of ``parts`` that add up to ``units`` (largest remainders).

    Each is at most 1 away from the exact proportion. All zero where the parts are.
    """
    total = math.fsum(parts)
    if not total > 0 or not math.isfinite(total):
        return [0] * len(parts)
    exact = [part / total * units for part in parts]
    whole = [math.floor(value) for value in exact]
    by_remainder = sorted(range(len(parts)), key=lambda i: (whole[i] - exact[i], i))
    for i in by_remainder[: units - sum(whole)]:
        whole[i] += 1
    return whole
