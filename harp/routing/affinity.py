"""Topology affinity: order ranks, rings and trees so that traffic stays under a ToR where it can.

A *place* says where an endpoint sits, from coarse to fine: pod, ToR, host, as an integer array of
shape (endpoints, levels); ``places`` reads it off a fabric. At every level the ring leaves each
place once and the tree enters each place once, which is the least that a connected ring or tree
can do: p places need p ring edges (none if p is 1) and p - 1 tree edges between them.

Order among equals is the order given, so rank 0 stays first and the result is reproducible.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Ints = NDArray[np.int64]

TREE_FAN_OUT = 2
"""Children of a tree's node: with two, a node sends to and receives from at most three peers."""


def ring_order(place: ArrayLike) -> Ints:
    """Order endpoints so that a ring over them leaves every place at every level at most once.

    Returns indices into ``place``, shape (endpoints,), starting with 0.
    """
    levels = _first_seen(place)
    # lexsort takes its last key first: coarse to fine, then the order given.
    keys = [np.arange(levels.shape[0]), *levels.T[::-1]]
    return np.lexsort(keys)


def rail_rings(place: ArrayLike, rail: ArrayLike) -> list[Ints]:
    """Build one ring a rail: NIC i talks to NIC i, and all rings visit hosts in the same order.

    ``place`` is as for ``ring_order``, its finest level being the host; ``rail`` has shape
    (endpoints,) and holds each endpoint's NIC index. Rings come in ascending order of rail.
    A host's coarse place is that of its first NIC, so rails that mirror each other agree.
    """
    levels, rails = _first_seen(place), np.asarray(rail)
    first_nic = np.unique(levels[:, -1], return_index=True)[1]
    host_order = ring_order(levels[np.sort(first_nic)])
    position = np.empty(host_order.size, np.int64)
    position[host_order] = np.arange(host_order.size)
    along = np.argsort(position[levels[:, -1]], kind="stable")
    return [along[rails[along] == r] for r in np.unique(rails)]


def tree_parents(place: ArrayLike) -> Ints:
    """Build a binary tree in which every place at every level is one connected subtree.

    Returns each endpoint's parent, shape (endpoints,); endpoint 0 is the root and has parent -1.
    Depth is logarithmic in the number of places and, within a place, in its endpoints.
    """
    levels = _first_seen(place)
    parents = np.full(levels.shape[0], -1, np.int64)
    if parents.size:
        _grow(levels, np.arange(parents.size), 0, [], parents)
    return parents


def _grow(levels: Ints, members: Ints, level: int, below: list[Ints], parents: Ints) -> int:
    """Join ``members`` and hang the subtrees rooted at ``below`` on them; return the root.

    ``below`` holds the member sets of at most two subtrees whose roots are already joined within;
    their first entry is the root. Each recursion refines by one level.
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
        hanging = [np.array([roots[c]]) if c < len(items) else below[c - len(items)]
                   for c in children[i]]
        if level == levels.shape[1]:
            roots[i] = int(items[i][0])
            for subtree in hanging:
                parents[subtree[0]] = roots[i]
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
