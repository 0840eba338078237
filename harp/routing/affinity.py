"""Topology affinity: order ranks, rings and trees so that traffic stays under a ToR where it can.

A *place* says where an endpoint sits, from coarse to fine: pod, ToR, host; an integer array of
shape (endpoints, levels) that ``endpoint_places`` reads off a fabric. At every level the ring
leaves each place once and the tree enters each place once, which is the least that a connected
ring or tree can do: p places need p ring edges (none if p is 1) and p - 1 tree edges between them.

Order among equals is the order given, so rank 0 stays first (but for `rank_order`, which also looks
at NCCL's trees) and the result is reproducible. An
endpoint may be given several times, once for each rank (GPU) that uses it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from harp.collectives.tree import two_trees
from harp.routing.tiers import tiers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from harp.routing.fabric import Fabric

    Ints = NDArray[np.int64]

ROTATIONS, SHUFFLES = 128, 32
"""Beginnings, and orders of pods and ToRs, that `rank_order` tries."""
TREE_FAN_OUT = 2
"""Children of a tree's node: with two, a node sends to and receives from at most three peers."""


def ring_order(fabric: Fabric, endpoints: ArrayLike) -> Ints:
    """Order ranks so that a ring over them leaves every pod, ToR and host at most once.

    ``endpoints`` has shape (ranks,): the endpoint of each rank. Returns the ranks in order.
    """
    return ordered_places(endpoint_places(fabric, endpoints))


def rank_order(fabric: Fabric, endpoints: ArrayLike) -> Ints:
    """Order hosts for NCCL, which makes a ring and two binary trees of them in one order.

    ``endpoints`` has shape (hosts,): the first endpoint of each. Every order that leaves each pod
    and ToR once makes the best ring. Among these, begun at other hosts and with pods and ToRs in
    other orders, it takes the one whose trees load the fullest ToR and pod least. Returns the hosts
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


def ring_crossings(place: ArrayLike, order: Ints) -> tuple[int, ...]:
    """Edges of a ring in this order that leave a place, by level."""
    levels = np.asarray(place, np.int64)[order]
    return tuple(int(count) for count in (levels != np.roll(levels, -1, axis=0)).sum(axis=0))


def tree_parents(fabric: Fabric, endpoints: ArrayLike) -> Ints:
    """Build a binary tree in which every pod, ToR and host is one connected subtree.

    ``endpoints`` has shape (ranks,): the endpoint of each rank. Returns each rank's parent;
    rank 0 is the root and has parent -1.
    """
    return tree_over_places(endpoint_places(fabric, endpoints))


def rail_rings(fabric: Fabric, endpoints: ArrayLike) -> list[Ints]:
    """Build one ring a rail: NIC i talks to NIC i, and all rings visit hosts in the same order.

    ``endpoints`` has shape (ranks,). Returns the ranks of each ring in order, rails ascending.
    Hosts are ordered by the places of their first NICs, which the other rails mirror.
    """
    chosen = np.asarray(endpoints, np.int64)
    place, rail = endpoint_places(fabric, chosen), fabric.endpoint_nic[chosen]
    hosts, first, host = np.unique(place[:, -1], return_index=True, return_inverse=True)
    by_rank = np.argsort(first)
    host_order = by_rank[ordered_places(place[first[by_rank]])]
    position = np.empty(hosts.size, np.int64)
    position[host_order] = np.arange(hosts.size)
    along = np.argsort(position[host], kind="stable")
    return [along[rail[along] == r] for r in np.unique(rail)]


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


def tree_over_places(place: ArrayLike) -> Ints:
    """Build a binary tree in which every place at every level is one connected subtree.

    Returns each endpoint's parent, shape (endpoints,); endpoint 0 is the root and has parent -1.
    Depth is logarithmic in the number of places and, within a place, in its endpoints.
    """
    levels = _first_seen(place)
    parents = np.full(levels.shape[0], -1, np.int64)
    if parents.size:
        _grow(levels, np.arange(parents.size), 0, [], parents)
    return parents


def _grow(levels: Ints, members: Ints, level: int, below: list[int], parents: Ints) -> int:
    """Join ``members`` and hang the subtrees with roots ``below`` on them; return the root.

    At most two subtrees hang on one place, and each recursion refines places by one level.
    """
    if level == levels.shape[1]:
        items = [np.array([m]) for m in members.tolist()]
    else:
        seen = levels[members, level]
        items = [members[seen == s] for s in np.unique(seen)]
    children = _shape(len(items), len(below))
    roots = [-1] * len(items)
    # Children come after their parents, so walking back finds every subtree already rooted.
    for i in reversed(range(len(items))):
        hanging = [roots[c] if c < len(items) else below[c - len(items)] for c in children[i]]
        if level == levels.shape[1]:
            roots[i] = int(items[i][0])
            parents[hanging] = roots[i]
        else:
            roots[i] = _grow(levels, items[i], level + 1, hanging, parents)
    return roots[0]


def _shape(items: int, leaves: int) -> list[list[int]]:
    """Lay out a binary tree of ``items`` nodes with ``leaves`` (at most two) more hanging on it.

    Returns the children of each node; numbers from ``items`` on are the leaves, which are heavy
    and therefore hang as near to the root as the rest allows.
    """
    children: list[list[int]] = [[] for _ in range(items)]
    slots = deque([0] * TREE_FAN_OUT)
    placed, hung = 1, 0
    while placed < items or hung < leaves:
        node = slots.popleft()
        if hung < leaves and (slots or placed == items):
            children[node].append(items + hung)
            hung += 1
        else:
            children[node].append(placed)
            slots.extend([placed] * TREE_FAN_OUT)
            placed += 1
    return children


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
