"""A figure of ours beside what others found."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """A figure, ours and theirs."""

    case: str
    figure: str
    ours: float
    low: float
    high: float
    """What they found lies between; the same where it is one figure."""
    unit: str
    source: str
    note: str = ""

    @property
    def error(self) -> float:
        """Ours relative to the nearest of theirs."""
        theirs = min(max(self.ours, self.low), self.high)
        return self.ours / theirs - 1.0 if self.ours != theirs else 0.0
