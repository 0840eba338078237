"""Share of published figures inside their intervals, each source held against all others.

Rows of one source share its hosts, network and authors, so they miss together. A *margin*
(`sim.answer.margins`) is found from the rows of other sources alone, each source counting once
however many rows it has, and a row is covered if its interval with that margin holds the published
figure. Its prediction moves by the margin, too, unless its draws agree. `derive` gives the margin
of all sources, which is the one that is shipped.

All is done with speeds: of a figure that is a time the inverse counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sim.answer import margins
from sim.answer.margins import Margin
from sim.answer.uncertainty import SAME
from sim.validation.predictions import TIMES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from sim.validation.predictions import Prediction

    Floats = NDArray[np.float64]

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
    """Margin from the intervals of draws of these rows, but those listed apart; of none, none."""
    rows = [row for row in rows if not row.apart]
    if not rows:
        return Margin(0.0, 0.0, 0.0)
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.source] = counts.get(row.source, 0) + 1
    weights = np.array([1 / counts[row.source] for row in rows])
    published = np.log([_speed(row, row.figure.value) for row in rows])
    low, middle, high = np.log([_speeds(row) for row in rows]).T
    open_ = np.array([_is_open(row) for row in rows])
    beside = _quantile((published - middle)[open_], weights[open_], 0.5) if any(open_) else 0.0
    return Margin(max(_quantile(low - published, weights, 1.0 - TAIL), 0.0), beside,
                  max(_quantile(published - high, weights, 1.0 - TAIL), 0.0))


def _is_open(row: Prediction) -> bool:
    """Whether draws differ; where they agree, the prediction is the answer at the values."""
    return row.high - row.low > SAME * row.high


def _quantile(scores: Floats, weights: Floats, share: float) -> float:
    """The least score that at least this share of the weight does not exceed."""
    order = np.argsort(scores)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(scores[order[int(np.searchsorted(reached, share - 1e-12))]])


def against_others(rows: Sequence[Prediction]) -> list[Prediction]:
    """Each row with the margin of its kind that follows from other sources."""
    found = list(rows)
    for kind in KINDS:
        some = [number for number, row in enumerate(rows) if kind.holds(row)]
        for source in {rows[number].source for number in some}:
            margin = derive([rows[number] for number in some if rows[number].source != source])
            for number in some:
                if rows[number].source == source:
                    found[number] = moved(rows[number], margin)
    return found


def moved(row: Prediction, margin: Margin) -> Prediction:
    """A row with a margin; its interval still holds the answer at the parameters' values."""
    low, middle, high = margin.move(*_speeds(row))
    ends = [_speed(row, low), _speed(row, high), row.at_values]
    value = _speed(row, middle) if _is_open(row) else row.value
    return replace(row, value=value, low=min(ends), high=max(ends))


def stale(rows: Sequence[Prediction]) -> list[str]:
    """A sentence for each shipped margin that is not the one of these rows."""
    found = []
    for kind in KINDS:
        margin = derive([row for row in rows if kind.holds(row)])
        if any(abs(a - b) > TOLERANCE for a, b in zip(margin, kind.shipped, strict=True)):
            found.append(f"the margin of {kind.name} is {_in_words(margin)}; "
                         f"sim/answer/margins.py has {_in_words(kind.shipped)}")
    return found


def _in_words(margin: Margin) -> str:
    return f"Margin({margin.below:.3f}, {margin.middle:.3f}, {margin.above:.3f})"


def as_shipped(rows: Sequence[Prediction]) -> list[Prediction]:
    """Each row with the shipped margin of its kind, as a new cluster's row has it."""
    return [moved(row, next(kind.shipped for kind in KINDS if kind.holds(row))) for row in rows]


def _speed(row: Prediction, value: float) -> float:
    """A figure's speed, or the figure of a speed: the same thing."""
    return 1 / value if row.figure.quantity in TIMES else value


def _speeds(row: Prediction) -> tuple[float, float, float]:
    """P10, P50 and P90 of a row as speeds."""
    low, high = sorted((_speed(row, row.low), _speed(row, row.high)))
    return low, _speed(row, row.value), high
