"""Share of published figures inside their intervals, each source held against all others.

Rows of one source share its hosts, network and authors, so they miss together. A *margin*
(`sim.answer.margins`) is found from the rows of other sources alone, each source counting once
however many rows it has, and a row is covered if its interval with that margin holds the published
figure. `derive` gives the margin of all sources, which is the one that is shipped.

All is done with speeds: of a figure that is a time the inverse counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sim.answer import margins
from sim.answer.margins import Margin
from sim.validation.predictions import TIMES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sim.validation.predictions import Prediction

TAIL = 0.08
"""Share of the weight that a margin leaves out at either end: 84 % are to be held, the middle of
the 75 to 90 % that are aimed at."""
TOLERANCE = 0.02
"""A shipped margin further than this (a logarithm) from the derived one is stale."""


@dataclass(frozen=True)
class Kind:
    """A kind of rows with a margin of its own."""

    name: str
    shipped: Margin
    holds: Callable[[Prediction], bool]


KINDS = (Kind("training", margins.TRAINING, lambda row: row.figure.size is None),
         Kind("collectives", margins.COLLECTIVES, lambda row: row.figure.size is not None))


def derive(rows: Sequence[Prediction]) -> Margin:
    """Margin from the intervals of draws of these rows; of none, no margin."""
    if not rows:
        return Margin(0.0, 0.0)
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.source] = counts.get(row.source, 0) + 1
    weights = np.array([1 / counts[row.source] for row in rows])
    below, above = [], []
    for row in rows:
        low, high = _speeds(row)
        published = _speed(row, row.figure.value)
        below.append(math.log(low / published))
        above.append(math.log(published / high))
    return Margin(_quantile(below, weights), _quantile(above, weights))


def _quantile(scores: Sequence[float], weights: np.ndarray[tuple[int], np.dtype[np.float64]]
              ) -> float:
    """The least margin that all but `TAIL` of the weight stays below; at least 0."""
    order = np.argsort(scores)
    share = np.cumsum(weights[order]) / weights.sum()
    number = int(np.searchsorted(share, 1.0 - TAIL - 1e-12))
    return max(float(scores[order[number]]), 0.0)


def against_others(rows: Sequence[Prediction]) -> list[Prediction]:
    """Each row with the margin of its kind that follows from other sources."""
    found = list(rows)
    for kind in KINDS:
        some = [number for number, row in enumerate(rows) if kind.holds(row)]
        for source in {rows[number].source for number in some}:
            margin = derive([rows[number] for number in some if rows[number].source != source])
            for number in some:
                if rows[number].source == source:
                    found[number] = widened(rows[number], margin)
    return found


def widened(row: Prediction, margin: Margin) -> Prediction:
    """A row whose interval has a margin and holds the prediction."""
    low, high = margin.widen(*_speeds(row))
    ends = [_speed(row, low), _speed(row, high), row.value]
    return replace(row, low=min(ends), high=max(ends))


def stale(rows: Sequence[Prediction]) -> list[str]:
    """A sentence for each shipped margin that is not the one of these rows."""
    found = []
    for kind in KINDS:
        margin = derive([row for row in rows if kind.holds(row)])
        if any(abs(a - b) > TOLERANCE for a, b in zip(margin, kind.shipped, strict=True)):
            found.append(f"the margin of {kind.name} is {margin.below:.3f} below and "
                         f"{margin.above:.3f} above; sim/answer/margins.py has "
                         f"{kind.shipped.below:.3f} and {kind.shipped.above:.3f}")
    return found


def as_shipped(rows: Sequence[Prediction]) -> list[Prediction]:
    """Each row with the shipped margin of its kind, as a new cluster's row has it."""
    return [widened(row, next(kind.shipped for kind in KINDS if kind.holds(row))) for row in rows]


def _speed(row: Prediction, value: float) -> float:
    """A figure's speed, or the figure of a speed: the same thing."""
    return 1 / value if row.figure.quantity in TIMES else value


def _speeds(row: Prediction) -> tuple[float, float]:
    """Ends of a row's interval as speeds, the lower one first."""
    ends = sorted((_speed(row, row.low), _speed(row, row.high)))
    return ends[0], ends[1]
