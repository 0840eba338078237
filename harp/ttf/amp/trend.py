"""The robust trend of a loss: its median, and the median deviation from that.

The median absolute deviation times 1.4826 estimates the standard deviation of normal noise
(Rousseeuw and Croux, Journal of the American Statistical Association 88, 1993); single outliers
move neither figure. A falling loss lies below its own median, so that only a rise is suspect.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from typing import Any

LEAST = 16
"""Losses before there is a trend."""
LEAST_DEVIATION = 1e-3
"""Of the median: a loss that stands still has no deviation of its own."""
WIDER, WIDEST = 1.5, 8.0
"""Growth of the threshold after a false alarm, and its limit."""


class Trend:
    """The last losses of applied steps, in time's order and in theirs: each step asks."""

    def __init__(self, window: int, deviations: float) -> None:
        self._losses: deque[float] = deque(maxlen=window)
        self._ordered: list[float] = []
        self._deviations = deviations
        self._width = 1.0

    def leaves(self, loss: float) -> bool:
        """Tell whether a loss is above the trend; most are below the median or near it."""
        if len(self._losses) < LEAST:
            return False
        middle = _middle(self._ordered)
        return loss > middle + self._width * self._deviations * LEAST_DEVIATION * abs(middle) and (
            loss > self.limit())

    def limit(self) -> float:
        """Give the largest loss that follows the trend."""
        if len(self._losses) < LEAST:
            return math.inf
        middle = _middle(self._ordered)
        deviation = 1.4826 * _middle(sorted([abs(loss - middle) for loss in self._ordered]))
        floor = LEAST_DEVIATION * abs(middle)
        return middle + self._width * self._deviations * max(deviation, floor)

    def add(self, loss: float) -> None:
        """Take the loss of an applied step."""
        if len(self._losses) == self._losses.maxlen:
            del self._ordered[bisect_left(self._ordered, self._losses[0])]
        self._losses.append(loss)
        insort(self._ordered, loss)

    def widen(self) -> None:
        """Note a false alarm: the data were unusual, not the precision."""
        self._width = min(self._width * WIDER, WIDEST)

    def state_dict(self) -> dict[str, Any]:
        """Give what `load_state_dict` takes."""
        return {"losses": list(self._losses), "width": self._width}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self._losses.clear()
        self._losses.extend(state["losses"])
        self._ordered = sorted(self._losses)
        self._width = state["width"]


def _middle(ordered: list[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
