"""What a list of predictions amounts to: medians, shares and coverage, and which rows miss."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.validation.predict import Prediction

NEAR = 0.25
"""Relative error above which a row misses."""
MEDIAN_TARGET, NEAR_TARGET, COVERED_TARGET = 0.10, 0.90, (0.75, 0.90)
"""What is aimed at: the median error, the share of rows that are near, the share covered."""


@dataclass(frozen=True)
class Summary:
    """Accuracy over rows that nothing was fitted to, or that were left out of the fit."""

    rows: int
    sources: int
    median: float
    """Median of the absolute relative error."""
    near: float
    """Share of rows within `NEAR`."""
    covered: float | None
    """Share of rows whose P10 to P90 holds the published value."""

    @classmethod
    def of(cls, rows: Sequence[Prediction], *, covered: bool = True) -> Summary | None:
        """Summarise rows; None where there are none."""
        if not rows:
            return None
        errors = [abs(row.error) for row in rows]
        held = sum(row.covered for row in rows) / len(rows) if covered else None
        return cls(len(rows), len({row.source for row in rows}), median(errors),
                   sum(error <= NEAR for error in errors) / len(rows), held)


def missed(row: Prediction) -> bool:
    """Whether a row is off by more than `NEAR`, so that the page owes an explanation."""
    return abs(row.error) > NEAR
