"""Equal-cost next hops of every switch towards every destination, computed all at once.

Destinations that hang on the same switches share their next hops, so the tables are kept by
attachment group (in a Clos, by leaf). The search runs backwards from all groups together: each
switch and each link carries a bit set with one bit a group, and one level of breadth-first search
is one OR over the links of each switch. A link is a next hop for a group exactly when its far end
was reached one level before its near end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from harp.routing.fabric import Fabric

    Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class NextHops:
    """Next hops in CSR: row ``group * switches + switch`` is ``links[ptr[row]:ptr[row + 1]]``.

    ``group`` gives each endpoint's attachment group. ``down`` has shape (endpoints, most ports):
    the live links into each endpoint, -1 elsewhere, and ``down_src`` the switches they come from.
    ``diameter`` is the largest number of links between a switch and an attached one.
    """

    switches: int
    group: Ints
    ptr: Ints
    links: NDArray[np.int32]
    down: NDArray[np.int32]
    down_src: NDArray[np.int32]
    diameter: int

    def at(self, switch: int, endpoint: int) -> NDArray[np.int32]:
        """List the equal-cost links from ``switch`` towards ``endpoint``, ascending."""
        last = self.down[endpoint][self.down_src[endpoint] == switch]
        if len(last):
            return np.sort(last)
        row = self.group[endpoint] * self.switches + switch
        return self.links[self.ptr[row] : self.ptr[row + 1]]

    def pick(
        self,
        switch: Ints,
        endpoint: Ints,
        choose: Callable[[Ints], NDArray[np.uint32]],
    ) -> NDArray[np.int32]:
        """Pick the link of each flow at ``switch`` towards ``endpoint``; -1 where none leads.

        ``choose`` gives the index of each flow's next hop for its number of next hops.
        """
        last = self.down_src[endpoint] == switch[:, None]
        arrived = last.sum(axis=1)
        row = self.group[endpoint] * self.switches + switch
        start = self.ptr[row]
        ways = np.where(arrived > 0, arrived, self.ptr[row + 1] - start)
        index = choose(np.maximum(ways, 1)).astype(np.int64)
        link = np.full(len(switch), -1, np.int32)
        between = np.flatnonzero((arrived == 0) & (ways > 0))
        link[between] = self.links[start[between] + index[between]]
        ends = np.flatnonzero(arrived)
        link[ends] = self.down[endpoint[ends], nth_true(last[ends], index[ends])]
        return link

    def expand(self, switch: Ints, endpoint: Ints) -> tuple[Ints, NDArray[np.int32], Ints]:
        """List all equal-cost links of many pairs: ``(entry, links, ways)``.

        ``links[j]`` leads from ``switch[entry[j]]`` towards ``endpoint[entry[j]]``, and ``ways``
        counts the links of each pair, 0 where none leads.
        """
        last = self.down_src[endpoint] == switch[:, None]
        arrived = last.sum(axis=1)
        row = self.group[endpoint] * self.switches + switch
        start = self.ptr[row]
        between = np.where(arrived > 0, 0, self.ptr[row + 1] - start)
        entry = np.repeat(np.arange(len(switch)), between)
        offset = np.arange(len(entry)) - np.repeat(np.cumsum(between) - between, between)
        ends, column = np.nonzero(last)
        links = np.concatenate(
            [self.links[start[entry] + offset], self.down[endpoint[ends], column]]
        )
        return np.concatenate([entry, ends]), links, np.where(arrived > 0, arrived, between)


def nth_true(mask: NDArray[np.bool_], n: ArrayLike) -> Ints:
    """Find the column of the ``n``-th True (from 0) of each row; 0 where there is none."""
    rank = np.cumsum(mask, axis=1)
    found: Ints = np.argmax(mask & (rank == np.asarray(n, np.int64)[:, None] + 1), axis=1)
    return found


def next_hops(fabric: Fabric) -> NextHops:
    """Compute the tables of ``fabric`` over its live links."""
    switches = len(fabric.switches)
    down = np.where(fabric.endpoint_ports >= 0, fabric.endpoint_ports ^ 1, -1)
    down = np.where((down >= 0) & fabric.link_up[down], down, -1).astype(np.int32)
    down_src = np.where(down >= 0, fabric.link_src[down], -1).astype(np.int32)
    attached, group = np.unique(np.sort(down_src, axis=1), axis=0, return_inverse=True)
    between = np.flatnonzero(
        fabric.link_up & (fabric.link_src < switches) & (fabric.link_dst < switches)
    )
    order = between[np.argsort(fabric.link_src[between], kind="stable")]
    leads, diameter = _search(fabric.link_src[order], fabric.link_dst[order], switches, attached)
    bits = np.unpackbits(leads.view(np.uint8), axis=1, count=len(attached), bitorder="little")
    hits = np.flatnonzero(np.ascontiguousarray(bits.T))
    links = order[hits % max(len(order), 1)].astype(np.int32)
    rows = hits // max(len(order), 1) * switches + fabric.link_src[links]
    counts = np.bincount(rows, minlength=len(attached) * switches)
    ptr = np.concatenate([[0], np.cumsum(counts)])
    return NextHops(switches, group.reshape(-1), ptr, links, down, down_src, diameter)


def _search(
    src: NDArray[np.int32], dst: NDArray[np.int32], switches: int, attached: NDArray[np.int32]
) -> tuple[NDArray[np.uint64], int]:
    """Bit sets of the groups that each link leads to, and the number of levels.

    Links are sorted by ``src``. ``attached`` has one row of switches a group, -1 for none.
    """
    words = -(-len(attached) // 64)
    frontier = np.zeros((switches, words), np.uint64)
    group, column = np.nonzero(attached >= 0)
    bit = np.uint64(1) << (group % 64).astype(np.uint64)
    np.bitwise_or.at(frontier, (attached[group, column], group // 64), bit)
    reached = frontier.copy()
    leads = np.zeros((len(src), words), np.uint64)
    nears, starts = np.unique(src, return_index=True)
    levels = 0
    while len(src):
        offered = frontier[dst]
        fresh = np.zeros_like(frontier)
        fresh[nears] = np.bitwise_or.reduceat(offered, starts, axis=0) & ~reached[nears]
        if not fresh.any():
            break
        leads |= offered & fresh[src]
        reached |= fresh
        frontier = fresh
        levels += 1
    return leads, levels
