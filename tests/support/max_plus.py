"""An oracle for pipelines: the contract of `harp.collectives.window` as a max-plus recurrence.

Written from the words of the contract alone. Edges do not share anything: a piece takes what it
takes. ``before[e]`` are the edges whose pieces edge e passes on, ``lag`` pieces later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


class Pipe(NamedTuple):
    """Edges of a pipeline, in an order in which those without lag follow those they wait for."""

    alpha_s: Sequence[float]
    busy_s: Sequence[float]
    """Time for which one piece occupies its edge."""
    before: Sequence[Sequence[int]]
    pieces: int
    lag: int
    slots: int


def arrivals(pipe: Pipe) -> np.ndarray:
    """When each piece of each edge arrives, [edge, piece]."""
    edges = len(pipe.alpha_s)
    handed, arrived = np.zeros((edges, pipe.pieces)), np.zeros((edges, pipe.pieces))
    after = [[g for g in range(edges) if e in pipe.before[g]] for e in range(edges)]
    for n in range(pipe.pieces):
        for e in range(edges):
            waits = [handed[e, n - 1]] if n else [0.0]
            if n >= pipe.lag:
                waits += [arrived[f, n - pipe.lag] for f in pipe.before[e]]
            waits += _slot_is_free(pipe, after[e], handed, arrived[e], n - pipe.slots)
            handed[e, n] = max(waits)
            can_move = max(handed[e, n] + pipe.alpha_s[e], arrived[e, n - 1] if n else 0.0)
            arrived[e, n] = can_move + pipe.busy_s[e]
    return arrived


def _slot_is_free(pipe: Pipe, after: list[int], handed: np.ndarray, arrived: np.ndarray,
                  last: int) -> list[float]:
    """Times for which piece ``last`` holds its slot."""
    if last < 0:
        return []
    if not after or last + pipe.lag >= pipe.pieces:
        return [arrived[last]]
    return [handed[g, last + pipe.lag] for g in after]
