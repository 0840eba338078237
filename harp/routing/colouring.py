"""Balanced edge colouring of bipartite multigraphs: which flow takes which spine.

Flows between leaves are the edges of a bipartite multigraph (sending leaves on the left,
receiving leaves on the right) and spines are colours. If no leaf sends or receives more than k
flows, k colours suffice so that no leaf uses a colour twice: every flow has its own uplink and
its own downlink (D. König, "Über Graphen und ihre Anwendung auf Determinantentheorie und
Mengenlehre", Math. Ann. 77, 1916; V. Vizing's 1964 theorem is its counterpart for graphs that
are not bipartite, where one more colour may be needed). If they send more, no leaf needs a colour
more than ceil(degree / k) times (D. de Werra, "Equitable colorations of graphs", 1971).

Two algorithms share the work:

* While the number of colours is even, an *Euler split* halves every vertex's edges (H. Gabow,
  "Using Euler partitions to edge color bipartite multigraphs", 1976). Here it takes the form of
  two pairings: edges are paired at their left vertex and paired at their right vertex; the two
  pairings together form even cycles, and alternate edges of a cycle go to alternate halves. All
  of it is array work, in O(E log E). Edges that are left over at a vertex are paired within the
  vertex's *group* (a leaf's pod), so that groups are halved too.
* What is left has an odd number of colours; it is coloured edge by edge with König's alternating
  paths, which take O(V) a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


def balanced_colouring(
    left: Ints,
    right: Ints,
    colours: int,
    *,
    left_group: Ints | None = None,
    right_group: Ints | None = None,
) -> Ints:
    """Colour edges so that every vertex has floor or ceil(degree / colours) edges of each colour.

    ``left`` and ``right`` have shape (edges,) and hold vertex numbers, counted separately on each
    side. The groups, also one number an edge, name a coarser partition of each side which is
    balanced as well as the Euler splits can. Returns colours 0..``colours`` - 1, shape (edges,).
    Raises ValueError if there is no colour.
    """
    if colours < 1:
        raise ValueError(f"an edge colouring needs at least 1 colour, got {colours}")
    left, right = np.asarray(left, np.int64), np.asarray(right, np.int64)
    lefts = [left] if left_group is None else [left, np.asarray(left_group, np.int64)]
    rights = [right] if right_group is None else [right, np.asarray(right_group, np.int64)]
    part = np.zeros(left.size, np.int64)
    while colours % 2 == 0 and left.size:
        half = euler_split([_within(part, key) for key in lefts],
                           [_within(part, key) for key in rights])
        part = 2 * part + half
        colours //= 2
    if colours == 1 or not left.size:
        return part
    odd = konig_colouring(_copies(_within(part, left), colours),
                          _copies(_within(part, right), colours), colours)
    return part * colours + odd


def euler_split(lefts: Sequence[Ints], rights: Sequence[Ints]) -> Ints:
    """Halve the edges at every vertex: 0 or 1 an edge, counts within 1 of each other.

    ``lefts`` and ``rights`` are keys of each side from fine (vertex) to coarse (group), each of
    shape (edges,) and each nested in the next; all levels are halved.
    """
    edges = lefts[0].size
    at_left, at_right = _mates(lefts, edges), _mates(rights, edges)
    # Two steps along a cycle, left pairing first, visit every other edge of it.
    skip = at_right[at_left]
    first = np.arange(skip.size)
    for _ in range(max(1, int(skip.size).bit_length())):
        first = np.minimum(first, first[skip])
        skip = skip[skip]
    return (first > first[at_left])[:edges].astype(np.int64)


def konig_colouring(left: Ints, right: Ints, colours: int) -> Ints:
    """Colour edges so that no vertex has a colour twice, by König's alternating paths.

    Raises ValueError if a vertex has more edges than there are colours.
    """
    offset = int(left.max(initial=-1)) + 1
    ends = [left.tolist(), (right + offset).tolist()]
    vertices = offset + int(right.max(initial=-1)) + 1
    degree = np.bincount(np.concatenate([left, right + offset]), minlength=vertices)
    if int(degree.max(initial=0)) > colours:
        raise ValueError(f"a vertex has {degree.max()} edges, more than the {colours} colours")
    at = [[-1] * colours for _ in range(vertices)]
    free = [(1 << colours) - 1] * vertices
    for edge, (u, v) in enumerate(zip(*ends, strict=True)):
        common = free[u] & free[v]
        if common:
            bit = common & -common
            at[u][bit.bit_length() - 1] = at[v][bit.bit_length() - 1] = edge
            free[u] ^= bit
            free[v] ^= bit
        else:
            _insert(edge, at, free, ends)
    colour = np.empty(left.size, np.int64)
    for row in at[:offset]:
        for c, edge in enumerate(row):
            if edge >= 0:
                colour[edge] = c
    return colour


def _insert(edge: int, at: list[list[int]], free: list[int], ends: list[list[int]]) -> None:
    """Colour edge (u, v) with a, free at u, after swapping a and b, free at v, along v's path."""
    u, v = ends[0][edge], ends[1][edge]
    bit_a, bit_b = free[u] & -free[u], free[v] & -free[v]
    a, b = bit_a.bit_length() - 1, bit_b.bit_length() - 1
    at[u][a] = edge
    free[u] ^= bit_a
    vertex, arriving, wanted, other = v, edge, a, b
    while True:
        displaced = at[vertex][wanted]
        at[vertex][wanted] = arriving
        if displaced < 0:
            # The path ends here: its last edge changed colour, so the old colour is free.
            at[vertex][other] = -1
            free[vertex] ^= bit_a ^ bit_b
            return
        at[vertex][other] = displaced
        if vertex == v:
            free[v] ^= bit_b
        vertex = ends[0][displaced] + ends[1][displaced] - vertex
        arriving, wanted, other = displaced, other, wanted


def _mates(keys: Sequence[Ints], edges: int) -> Ints:
    """Pair all edges, within the finest key where possible, then within the coarser ones.

    An odd edge is paired with a dummy, number ``edges``. Returns each one's mate.
    """
    mate = np.full(edges + edges % 2, -1, np.int64)
    rest = np.arange(edges)
    for key in keys:
        order = rest[np.argsort(key[rest], kind="stable")]
        sorted_key = key[order]
        starts = np.flatnonzero(np.diff(sorted_key, prepend=sorted_key[0] - 1)) \
            if order.size else order
        within = np.arange(order.size) - np.repeat(starts, np.diff(starts, append=order.size))
        follows = np.diff(sorted_key, append=sorted_key[-1:] + 1) == 0
        first = np.flatnonzero((within % 2 == 0) & follows)
        mate[order[first]] = order[first + 1]
        mate[order[first + 1]] = order[first]
        rest = order[mate[order] < 0]
    if edges % 2:
        rest = np.append(rest, edges)
    mate[rest[::2]], mate[rest[1::2]] = rest[1::2], rest[::2]
    return mate


def _within(part: Ints, key: Ints) -> Ints:
    """Return dense numbers of the pairs (part, key)."""
    if not key.size:
        return key
    dense: Ints = np.unique(part * (int(key.max()) + 1) + key, return_inverse=True)[1]
    return dense


def _copies(vertex: Ints, capacity: int) -> Ints:
    """Split each vertex into copies of at most ``capacity`` edges; return dense copy numbers."""
    order = np.argsort(vertex, kind="stable")
    starts = np.searchsorted(vertex[order], vertex[order])
    copy = np.empty_like(vertex)
    copy[order] = (np.arange(vertex.size) - starts) // capacity
    return _within(vertex, copy)
