"""Where a step's time goes: what the network did while the GPUs waited for it."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from sim.results import Breakdown

if TYPE_CHECKING:
    from sim.results import Span

KINDS = {"transfer": "transfer", "selection": "selection", "latency": "latency",
         "message": "message", "negotiation": "message"}


def exposed(spans: tuple[Span, ...], start_s: float, end_s: float) -> dict[str, float]:
    """Split [start_s, end_s] by what the network did, in seconds by kind.

    Where several things happen at once, transfer comes before selection, latency and message cost.
    What no span covers is waiting for a turn or a cycle and counts as message cost.
    """
    parts = dict.fromkeys(("transfer", "selection", "latency", "message"), 0.0)
    inside = [s for s in spans if s.end_s > start_s]
    cuts = {start_s, end_s}
    for span in inside:
        cuts |= {max(span.start_s, start_s), min(span.end_s, end_s)}
    edges = sorted(cut for cut in cuts if start_s <= cut <= end_s)
    order = list(parts)
    for left_s, right_s in pairwise(edges):
        kinds = {KINDS.get(s.kind, "message") for s in inside
                 if s.start_s <= left_s and s.end_s >= right_s}
        parts[min(kinds, key=order.index, default="message")] += right_s - left_s
    return parts


def mean_breakdown(breakdowns: list[Breakdown]) -> Breakdown:
    """Mean of each part."""
    parts = np.array([[b.compute_s, b.exposed_transfer_s, b.selection_s, b.latency_s, b.message_s]
                      for b in breakdowns]).mean(axis=0)
    assert math.isfinite(parts.sum())
    return Breakdown(*(float(part) for part in parts))
