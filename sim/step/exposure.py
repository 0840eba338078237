"""Exposed time of a step: activity of the network while the GPUs wait for it."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from sim.records.results import Breakdown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sim.records.results import Span

KINDS = {"transfer": "transfer", "selection": "selection", "latency": "latency",
         "message": "message", "negotiation": "message"}
"""Part of a step to which each kind of the network's spans belongs."""
ORDER = ("transfer", "selection", "latency", "message")
"""Parts, first the one to which time belongs when several things happen at once."""


def exposed(spans: tuple[Span, ...], start_s: float, end_s: float) -> dict[str, float]:
    """Split [start_s, end_s] by what the network did, in seconds by kind.

    Where several things happen at once, the first of `ORDER` counts.
    Time that no span covers is waiting for a turn or a cycle and counts as message cost.
    """
    return split_by_name(((KINDS[span.kind], span) for span in spans), ORDER, start_s, end_s)


def split_by_name(spans: Iterable[tuple[str, Span]], order: Sequence[str], start_s: float,
                  end_s: float) -> dict[str, float]:
    """Split [start_s, end_s] by what goes on, in seconds by name.

    Args:
        spans: each with its name.
        order: the names; where several things go on, the first counts, and where none does the
            last.
        start_s: beginning.
        end_s: end.
    """
    parts = dict.fromkeys(order, 0.0)
    busy = dict.fromkeys(order, 0)
    changes = [(start_s, order[-1], 0), (end_s, order[-1], 0)]
    for name, span in spans:
        if span.end_s > start_s and span.start_s < end_s:
            changes += [(max(span.start_s, start_s), name, 1), (min(span.end_s, end_s), name, -1)]
    for (left_s, name, change), (right_s, _, _) in pairwise(sorted(changes)):
        busy[name] += change
        if right_s > left_s:
            parts[next((one for one in order if busy[one]), order[-1])] += right_s - left_s
    return parts


def mean_breakdown(breakdowns: list[Breakdown]) -> Breakdown:
    """Mean of each part."""
    parts = np.array([[b.compute_s, b.exposed_transfer_s, b.selection_s, b.latency_s, b.message_s]
                      for b in breakdowns]).mean(axis=0)
    assert math.isfinite(parts.sum())
    return Breakdown(*(float(part) for part in parts))
