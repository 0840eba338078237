"""Tiers, blocks and columns of a fabric, and a lower bound of the load of any routes.

The tier of an endpoint is 0, that of a switch its distance from the nearest endpoint: ToRs are 1,
spines or aggregation switches 2, cores 3. A *block* of tier t is what hangs together without
climbing above t: an endpoint, a ToR (or the ToRs that share bonded endpoints), a pod. Traffic
between two blocks must cross the links from each block up to tier t + 1, its *cut*; these cuts
bound the best possible load of the fullest link from below.

A node's uplinks are numbered in *columns* such that the same column of two nodes leads into the
same plane of the fabric. In a Clos, two flows climb the same columns from both ends and meet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harp.routing.fabric import Fabric

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Tiers:
    """Tiers, uplinks and blocks; links that are down count, so that numbers survive a failure.

    ``tier`` has one entry a node. ``up`` has shape (nodes, most uplinks) and holds each column's
    link, -1 where there is none. ``block`` has shape (tiers, nodes): a label of each node's block,
    meaningful for nodes of that tier and below.
    """

    tier: Ints
    up: Ints
    block: Ints


def tiers(fabric: Fabric) -> Tiers:
    """Find the tiers of a fabric."""
    src, dst = fabric.link_src.astype(np.int64), fabric.link_dst.astype(np.int64)
    nodes = len(fabric.switches) + len(fabric.endpoints)
    tier = np.full(nodes, nodes)
    tier[len(fabric.switches):] = 0
    for distance in range(1, nodes):
        reached = dst[(tier[src] == distance - 1) & (tier[dst] > distance)]
        if not reached.size:
            break
        tier[reached] = distance
    climbs = np.flatnonzero(tier[dst] == tier[src] + 1)
    plane = np.empty(nodes, np.int64)
    for t in range(int(tier.max()) + 1):
        plane[tier == t] = _components(src, dst, tier >= t)[tier == t]
    far = dst[climbs]
    climbs = climbs[np.lexsort([climbs, far, plane[far], src[climbs]])]
    start = np.searchsorted(src[climbs], src[climbs])
    column = np.arange(climbs.size) - start
    up = np.full((nodes, int(column.max(initial=0)) + 1), -1, np.int64)
    up[src[climbs], column] = climbs
    block = [_components(src, dst, tier <= t) for t in range(int(tier.max()))]
    return Tiers(tier, up, np.array(block))


def _components(src: Ints, dst: Ints, inside: NDArray[np.bool_]) -> Ints:
    """Label the connected components of the nodes ``inside`` by their smallest node."""
    label = np.arange(inside.size)
    kept = inside[src] & inside[dst]
    src, dst = src[kept], dst[kept]
    while True:
        before = label.copy()
        np.minimum.at(label, dst, label[src])
        label = label[label]
        if np.array_equal(before, label):
            return label


def fair_loads(fabric: Fabric, shape: Tiers, src: Ints, dst: Ints, demand_bps: Floats) -> Floats:
    """Each link's fair share: the load (demand over capacity) that its cut cannot go below.

    With n flows over L links of a cut it is the largest of: total demand over total capacity; the
    largest flow on the fastest link; ceil(n / L) smallest flows on the fastest link (pigeonhole:
    flows are not split). Shape (links,), 0 where no flow must cross. Its maximum is the
    *collision-free bound*: no assignment of paths has a smaller maximum link load.
    """
    fair = np.zeros(len(fabric.link_src))
    first = len(fabric.switches)
    for t, block in enumerate(shape.block):
        a, b = block[src + first], block[dst + first]
        apart = a != b
        up = np.flatnonzero((shape.tier[fabric.link_src] == t)
                            & (shape.tier[fabric.link_dst] == t + 1))
        for links, inner, ends in ((up, fabric.link_src[up], a), (up ^ 1, fabric.link_src[up], b)):
            bound = _cut_bound(block[inner], fabric.link_bps[links] * fabric.link_up[links],
                               ends[apart], demand_bps[apart])
            fair[links] = bound[block[inner]]
    return fair


def _cut_bound(link_block: Ints, bps: Floats, flow_block: Ints, demand_bps: Floats) -> Floats:
    """Smallest possible load of each block's cut, by block label; dead links have ``bps`` 0."""
    size = int(max(link_block.max(initial=0), flow_block.max(initial=0))) + 1
    fastest, smallest, largest = np.zeros(size), np.full(size, np.inf), np.zeros(size)
    np.maximum.at(fastest, link_block, bps)
    np.minimum.at(smallest, flow_block, demand_bps)
    np.maximum.at(largest, flow_block, demand_bps)
    links = np.bincount(link_block[bps > 0], minlength=size)
    flows = np.bincount(flow_block, minlength=size)
    used = np.flatnonzero((flows > 0) & (links > 0))
    bound = np.zeros(size)
    total, capacity = np.bincount(flow_block, demand_bps, size), np.bincount(link_block, bps, size)
    fair = total[used] / capacity[used]
    crowd = -(-flows[used] // links[used]) * smallest[used]
    bound[used] = np.maximum(fair, np.maximum(crowd, largest[used]) / fastest[used])
    return bound
