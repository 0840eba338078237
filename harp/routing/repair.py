"""Repair of a collision-free plan after a failure: alternating paths that move few flows.

A link that is down is a colour that its node must not use any more. Flows that had it lose their
colour and are inserted again as König inserts an edge: where sender and receiver have no common
free column, two columns are swapped along the path of flows between them. For one failed cable
under a switch that has a column to spare this always succeeds: the cable acts as a flow from the
switch to itself that keeps its column, and no swapped path can cross it, because the path would
have to enter the switch by a column that is free there. With several failures a path may be
blocked; what cannot be inserted is left to the local search.

Above the first tier the failed link may leave a switch with fewer uplinks than flows that climb
through it, although its pod has uplinks to spare. Columns are then swapped one tier below so that
a flow which stays in the pod climbs to that switch in place of one that leaves the pod.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from harp.routing.colouring import Palette
from harp.routing.paths import mirrored_paths

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harp.routing.fabric import Fabric
    from harp.routing.fabric_tiers import Tiers

    Ints = NDArray[np.int64]

MOST_SWAPS = 16
"""Swaps of columns in one tier to relieve the switches above it: 2 ms each at 1,024 flows."""


def repaired_paths(fabric: Fabric, shape: Tiers, src: Ints, dst: Ints, path: Ints) -> Ints:
    """Give flows new paths where ``path``, shape (flows, links), is -1 throughout.

    No two flows share a link afterwards unless they did before. Returns shape (flows, links), -1
    throughout for flows that found no place.
    """
    climb = iter(range(shape.block.shape[0]))

    def column(flows: Ints, at: Ints, to: Ints, columns: int) -> Ints:
        held = _held(shape, path[flows], next(climb), at, to)
        senders, left = np.unique(at, return_inverse=True)
        receivers, right = np.unique(to, return_inverse=True)
        palette = Palette(left, right, columns)
        _block(palette, 0, fabric, shape.up[senders, :columns])
        _block(palette, palette.first_right, fabric, shape.up[receivers, :columns] ^ 1)
        lost = [flow for flow, kept in enumerate(held.tolist())
                if kept < 0 or not palette.put(flow, kept)]
        for flow in lost:
            palette.insert(flow, shortest=True)
        _ease(palette, fabric, shape, at, to)
        return np.array(palette.colour, np.int64)

    return mirrored_paths(fabric, shape, src, dst, column)


def _held(shape: Tiers, path: Ints, climb: int, at: Ints, to: Ints) -> Ints:
    """Current column of each flow at both ends; -1 where there is no common column."""
    last = (path >= 0).sum(axis=1) - 1 - climb
    down = np.take_along_axis(path, np.maximum(last, 0)[:, None], axis=1)
    up = path[:, climb: climb + 1]
    same = (shape.up[at] == up) & (shape.up[to] == (down ^ 1)) & (up >= 0)
    return np.where(same.any(axis=1), np.argmax(same, axis=1), -1)


def _block(palette: Palette, first: int, fabric: Fabric, link: Ints) -> None:
    """Block columns with a ``link``, shape (vertices, columns), down or absent (negative)."""
    for vertex, column in np.argwhere((link < 0) | ~fabric.link_up[link]).tolist():
        palette.block(first + vertex, column)


def _ease(palette: Palette, fabric: Fabric, shape: Tiers, at: Ints, to: Ints) -> None:
    """Swap columns while that takes flows off switches above that have too few live uplinks."""
    room = [((shape.up >= 0) & fabric.link_up[shape.up ^ turn]).sum(axis=1) for turn in (0, 1)]

    def crowded(colour: Ints) -> tuple[Ints, int]:
        """Flows that climb on through a switch with too few uplinks, and how many are too many."""
        above, over = (np.where(colour >= 0, fabric.link_dst[shape.up[end, colour]], -1)
                       for end in (at, to))
        onward = np.flatnonzero(above != over)
        excess = [np.maximum(np.bincount(side[onward], minlength=one.size) - one, 0)
                  for side, one in zip((above, over), room, strict=True)]
        guilty = onward[(excess[0][above[onward]] > 0) | (excess[1][over[onward]] > 0)]
        return guilty, int(excess[0].sum() + excess[1].sum())

    guilty, worst = crowded(np.array(palette.colour))
    tried: set[tuple[int, int]] = set()
    for _ in range(MOST_SWAPS):
        best: tuple[int, list[int], int, int] | None = None
        for flow, other in product(guilty.tolist(), range(palette.colours)):
            own = palette.colour[flow]
            if other == own or (flow, other) in tried:
                continue
            chain = palette.component(flow, other)
            if chain is None:
                continue
            colour = np.array(palette.colour)
            colour[chain] = own + other - colour[chain]
            score = crowded(colour)[1]
            if best is None or (score, len(chain)) < (best[0], len(best[1])):
                best = score, chain, own, other
        if best is None or best[0] > worst:
            return
        # A swap that helps nothing may open the way for one that does, but not its own undoing.
        tried |= {(best[1][0], best[2]), (best[1][0], best[3])}
        palette.swap(*best[1:])
        guilty, worst = crowded(np.array(palette.colour))
