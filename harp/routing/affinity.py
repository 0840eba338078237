"""Topology affinity: orders of ranks that keep traffic under a ToR where possible.

A *place* says where an endpoint sits, from coarse to fine: pod, ToR, host; an integer array of
shape (endpoints, levels) that ``endpoint_places`` reads off a fabric. At every level the ring
leaves each place once, the least that a connected ring can do: p places need p ring edges between
them (none if p is 1).

Equal endpoints keep the given order, so the result is reproducible and rank 0 stays first;
`rank_order` may move it, because it also scores NCCL's trees. An endpoint may be given several
times, once for each rank (GPU) that uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from harp.collectives.tree import two_trees
from harp.routing.fabric_tiers import tiers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from harp.routing.fabric import Fabric

    Ints = NDArray[np.int64]

ROTATIONS, SHUFFLES = 128, 32
"""Beginnings, and orders of pods and ToRs, that `rank_order` tries."""


def ring_order(fabric: Fabric, endpoints: ArrayLike) -> Ints:
    """Order ranks so that a ring over them leaves every pod, ToR and host at most once.

    ``endpoints`` has shape (ranks,): the endpoint of each rank. Returns the ranks in order.
    """
    return ordered_places(endpoint_places(fabric, endpoints))


def rank_order(fabric: Fabric, endpoints: ArrayLike) -> Ints:
    """Order hosts for NCCL, which makes a ring and two binary trees of them in one order.

    ``endpoints`` has shape (hosts,): the first endpoint of each. Every order that leaves each pod
    and ToR once makes the best ring. Among these, with other first hosts and other orders of pods
    and ToRs, it takes the one with trees that load the fullest ToR and pod least. Returns the hosts
    in order.
    """
    return place_hosts(endpoint_places(fabric, endpoints)[:, :-1])


def place_hosts(place: ArrayLike) -> Ints:
    """Do what `rank_order` does for hosts at these places, coarse to fine."""
    levels = _first_seen(place)
    rng = np.random.default_rng(0)
    best, least = np.arange(len(levels)), None
    for shuffle in range(1 + SHUFFLES):
        keys = levels if not shuffle else rng.permutation(len(levels))[levels]
        order = np.lexsort([np.arange(len(levels)), *keys.T[::-1]])
        for start in range(0, len(order), -(-len(order) // ROTATIONS)):
            turned = np.roll(order, -start)
            cost = tree_load(levels, turned)
            if least is None or cost < least:
                best, least = turned, cost
    return best


def tree_load(place: ArrayLike, order: Ints) -> tuple[int, int]:
    """Edges of NCCL's two trees over hosts in this order that leave their fullest places.

    One place of each level, added up; and all edges that leave a place of any level.
    """
    levels = np.asarray(place, np.int64)
    if len(order) < 2:
        return 0, 0
    trees, _, _ = two_trees(order.astype(np.int32))
    child, parent = (np.concatenate([tree[end] for tree in trees]) for end in (0, 1))
    near, far = levels[child], levels[parent]
    most = 0
    for level in range(levels.shape[1]):
        leaves = near[:, level] != far[:, level]
        ends = np.concatenate([near[leaves, level], far[leaves, level]])
        most += int(np.bincount(ends, minlength=1).max())
    return most, int((near != far).sum())


def endpoint_places(fabric: Fabric, endpoints: ArrayLike) -> Ints:
    """Read off where endpoints sit, (ranks, levels): blocks from coarse to fine, then the host.

    The blocks are those of ``tiers``: pods, then ToRs, where ToRs that share bonded NICs are one.
    """
    chosen = np.asarray(endpoints, np.int64)
    blocks = tiers(fabric).block[:0:-1, chosen + len(fabric.switches)]
    return np.column_stack([*blocks, fabric.endpoint_host[chosen]]).astype(np.int64)


def ordered_places(place: ArrayLike) -> Ints:
    """Order endpoints so that a ring over them leaves every place at every level at most once.

    Returns indices into ``place``, shape (endpoints,), starting with 0.
    """
    levels = _first_seen(place)
    # lexsort takes its last key first: coarse to fine, then the order given.
    return np.lexsort([np.arange(levels.shape[0]), *levels.T[::-1]])


def _first_seen(place: ArrayLike) -> Ints:
    """Label places by their first endpoint, nested: equal labels in two pods are two places."""
    raw = np.asarray(place, np.int64)
    if raw.ndim != 2 or not raw.shape[1]:
        raise ValueError(f"places have shape (endpoints, levels), not {raw.shape}")
    levels = np.empty_like(raw)
    for level in range(raw.shape[1]):
        _, first, inverse = np.unique(raw[:, : level + 1], axis=0, return_index=True,
                                      return_inverse=True)
        levels[:, level] = first[inverse.reshape(-1)]
    return levels
