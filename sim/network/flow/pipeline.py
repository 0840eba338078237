"""How long a pipeline's first and last pieces keep it from its steady pace: closed forms.

A phase of P pieces is a max-plus system: piece n of an edge ends at

    end(e, n) = max(handed(e, n) + alpha(e), end(e, n - 1)) + time(e)

where it is handed over when the pieces that it passes on have come, and a slot is free
(`harp.collectives.window`). The end of the phase is the longest path through that system
(Baccelli et al., Synchronization and Linearity, 1992). Along a path one stays at an edge, for
time(e) a piece; or goes on to the next, for alpha(e) + time(e); or waits for the slot of the piece
that is a window of W earlier, for alpha(e) + time(e) as well. With x the longest time(e) and h the
longest alpha(e) + time(e), the path takes, C times a window, P' = P - C·W,

- around a ring, where a hop replaces ``lag`` pieces,
  C·h + (P' + lag - 1)·x + the largest sum of (alpha + time - lag·x) over at most P' / lag edges in
  a row;
- through a tree C·h + (P' - 1)·x + the largest sum of (alpha + time) from a leaf to a leaf,

and the longest one has C either 0 or as large as can be, since it is convex in C.
Both are exact where the slowest edge is on that path, and an upper bound elsewhere. So a flat ring
of short messages over M hosts pays for its crossings as often as a message crosses, and one of long
messages pays for bytes alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harp.collectives.ir import Feeds
    from harp.collectives.window import Cut

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


class PieceTimes(NamedTuple):
    """What one piece takes on each edge, in seconds; one array entry an edge."""

    alpha_s: Floats
    """Latency, which pieces that follow one another overlap."""
    message_s: Floats
    """The stack's cost of a message, which they do not."""
    first_s: Floats
    """Its bytes while only its own hop is busy."""
    steady_s: Floats
    """Its bytes while all edges are."""

    @property
    def busy_s(self) -> Floats:
        """What a piece keeps its edge busy for, at the steady pace."""
        return self.message_s + self.steady_s


class PhaseTimes(NamedTuple):
    """A phase's time beside the steady flow of its bytes."""

    latency_s: float
    filling_s: float
    """Bytes of the first pieces, while not all edges are busy."""
    message_s: float
    least_s: Floats
    """For each group: least seconds of a piece that the window allows; 0 where it does not bind."""


def phase_times(times: PieceTimes, group: Ints, feeds: Feeds, cut: Cut, slots: int) -> PhaseTimes:
    """Time a pipeline, several copies of it side by side (channels) included.

    Args:
        times: of each edge, copy after copy.
        group: number of each edge's ring or tree, from 0 without gaps; all of one size in a ring.
        feeds: data dependences within a copy.
        cut: pieces and lag.
        slots: pieces that an edge holds.

    """
    groups = int(group.max()) + 1
    message_s = _largest(times.message_s, group, groups)
    busy_s = _largest(times.busy_s, group, groups)
    hop_s = _largest(times.alpha_s + times.busy_s, group, groups)
    flow_s = np.maximum(_largest(times.steady_s, group, groups), hop_s / slots - message_s)
    first_s = alpha_s = np.zeros(groups)
    if not cut.lag:
        copies = len(group) // len(feeds.level)
        first_s, alpha_s = (_largest(_path_s(values, feeds, copies), group, groups) for values in (
            times.alpha_s + times.message_s + times.first_s, times.alpha_s))

    def path_s(windows: int) -> Floats:
        pieces = cut.pieces - windows * slots
        if not cut.lag:
            return windows * hop_s + first_s + (pieces - 1) * busy_s
        return windows * hop_s + _ring_s(times, groups, busy_s, cut._replace(pieces=pieces))

    held = hop_s > slots * busy_s
    end_s = path_s(0)
    if held.any():
        end_s = np.maximum(end_s, path_s((cut.pieces - 1) // slots))
    beside_s = np.maximum(end_s - cut.pieces * (message_s + flow_s), 0.0)
    latency_s = beside_s if cut.lag else np.minimum(beside_s, alpha_s)
    return PhaseTimes(float(latency_s.max()), float((beside_s - latency_s).max()),
                      cut.pieces * float(message_s.max()), np.where(held, flow_s, 0.0))


def _largest(values: Floats, group: Ints, groups: int) -> Floats:
    largest = np.zeros(groups)
    np.maximum.at(largest, group, values)
    return largest


def _ring_s(times: PieceTimes, rings: int, pace_s: Floats, cut: Cut) -> Floats:
    """End of each ring; its edges stand in their order around it."""
    hop_s = (times.alpha_s + times.busy_s).reshape(rings, -1)
    gain_s = hop_s - cut.lag * pace_s[:, None]
    return ((cut.pieces + cut.lag - 1) * pace_s
            + _largest_run(gain_s, -(-cut.pieces // cut.lag)))


def _largest_run(values: Floats, longest: int) -> Floats:
    """Largest sum of 1 to ``longest`` values in a row, around each ring (row) again and again."""
    size = values.shape[1]
    reach = longest if longest <= 2 * size else size + longest % size
    around = (longest - reach) // size * np.maximum(values.sum(axis=1), 0.0)
    sums = np.cumsum(np.concatenate([np.zeros((len(values), 1)), np.tile(values, 3)], axis=1),
                     axis=1)
    return np.asarray((sums[:, 1:] - _least_of_last(sums[:, :-1], reach)).max(axis=1) + around)


def _least_of_last(values: Floats, width: int) -> Floats:
    """Smallest of the last ``width`` values at each place of each row (van Herk 1992)."""
    rows, length = values.shape
    blocks = 1 + -(-length // width)
    padded = np.full((rows, blocks * width), np.inf)
    padded[:, width:width + length] = values
    cut = padded.reshape(rows, blocks, width)
    ahead = np.minimum.accumulate(cut, axis=2).reshape(rows, -1)
    behind = np.minimum.accumulate(cut[:, :, ::-1], axis=2)[:, :, ::-1].reshape(rows, -1)
    at = np.arange(width, width + length)
    return np.minimum(ahead[:, at], behind[:, at - width + 1])


def _path_s(values: Floats, feeds: Feeds, copies: int) -> Floats:
    """Largest sum along the paths that end with each edge, its own value included."""
    own = values.reshape(copies, -1).T
    sums = own.copy()
    level = feeds.level[feeds.target]
    order = np.argsort(level, kind="stable")
    for pairs in np.split(order, np.flatnonzero(np.diff(level[order])) + 1):
        target = feeds.target[pairs]
        before = np.zeros((len(feeds.level), copies))
        np.maximum.at(before, target, sums[feeds.source[pairs]])
        sums[target] = own[target] + before[target]
    return np.ascontiguousarray(sums.T).ravel()
