"""Balanced edge colouring of bipartite multigraphs: a spine for each flow.

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
* The rest has an odd number of colours; it is coloured edge by edge with König's alternating
  paths, which take O(V) a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_FREE, _BLOCKED = -1, -2
"""Marks a colour of a vertex that no edge uses; numbers from 0 on are edges."""


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
    degree = max(int(np.bincount(side).max(initial=0)) for side in (left, right))
    if degree > colours:
        raise ValueError(f"a vertex has {degree} edges, more than the {colours} colours")
    palette = Palette(left, right, colours)
    for edge in range(left.size):
        palette.insert(edge)
    return np.array(palette.colour, np.int64)


class Palette:
    """A proper edge colouring that takes edges one at a time and can have colours blocked.

    ``colour`` has one entry an edge, -1 for an edge without a colour. A blocked colour is one that
    a vertex must not use, such as an uplink that is down.
    """

    def __init__(self, left: Ints, right: Ints, colours: int) -> None:
        self.colours = colours
        self.first_right = int(left.max(initial=-1)) + 1
        self._ends = list(zip(left.tolist(), (right + self.first_right).tolist(), strict=True))
        vertices = self.first_right + int(right.max(initial=-1)) + 1
        self._at = [[_FREE] * colours for _ in range(vertices)]
        self._free = [(1 << colours) - 1] * vertices
        self.colour = [-1] * left.size

    def block(self, vertex: int, colour: int) -> None:
        """Forbid ``colour`` at a left vertex, or at a right one counted from ``first_right``."""
        self._at[vertex][colour] = _BLOCKED
        self._free[vertex] &= ~(1 << colour)

    def put(self, edge: int, colour: int) -> bool:
        """Give an edge a colour; False, and nothing done, where the colour is not free."""
        u, v = self._ends[edge]
        if not (self._free[u] & self._free[v]) >> colour & 1:
            return False
        for vertex in (u, v):
            self._at[vertex][colour] = edge
            self._free[vertex] ^= 1 << colour
        self.colour[edge] = colour
        return True

    def insert(self, edge: int, *, shortest: bool = False) -> bool:
        """Colour an edge, recolouring others along an alternating path if need be.

        Of several paths take the first, or the ``shortest``. Without blocked colours it succeeds
        whenever both ends have a free colour. Returns False, and does nothing, where it does not.
        """
        u, v = self._ends[edge]
        common = self._free[u] & self._free[v]
        if common:
            return self.put(edge, _lowest(common))
        best: tuple[list[int], int, int] | None = None
        for a, b in ((a, b) for a in _bits(self._free[u]) for b in _bits(self._free[v])):
            chain = self._chain(v, a, b)
            if chain is not None and (best is None or len(chain) < len(best[0])):
                best = chain, a, b
                if not shortest:
                    break
        if best is None:
            return False
        chain, a, b = best
        self.swap(chain, a, b)
        return self.put(edge, a)

    def component(self, edge: int, other: int) -> list[int] | None:
        """Edges that ``swap`` must take along to give ``edge`` the ``other`` colour; None: blocked.

        They are the path or cycle through ``edge`` that alternates its own colour and the other.
        """
        u, v = self._ends[edge]
        own = self.colour[edge]
        assert own not in {-1, other}, "an edge swaps a colour that it has for another"
        beyond = self._chain(v, other, own, stop=edge)
        if beyond is None or self._at[u][other] in beyond:
            return beyond and [edge, *beyond]
        before = self._chain(u, other, own)
        return None if before is None else [edge, *beyond, *before]

    def swap(self, edges: list[int], a: int, b: int) -> None:
        """Swap two colours on edges that form whole alternating paths or cycles."""
        swapped = [a + b - self.colour[edge] for edge in edges]
        for edge in edges:
            self._clear(edge)
        for edge, colour in zip(edges, swapped, strict=True):
            self.put(edge, colour)

    def _chain(self, vertex: int, a: int, b: int, stop: int = -1) -> list[int] | None:
        """Edges of the path from ``vertex`` that alternates a and b; None if it is blocked."""
        chain, wanted = [], a
        while (edge := self._at[vertex][wanted]) not in {_FREE, stop}:
            if edge == _BLOCKED:
                return None
            chain.append(edge)
            vertex = sum(self._ends[edge]) - vertex
            wanted = a + b - wanted
        return chain

    def _clear(self, edge: int) -> None:
        """Take an edge's colour away."""
        for vertex in self._ends[edge]:
            self._at[vertex][self.colour[edge]] = _FREE
            self._free[vertex] |= 1 << self.colour[edge]
        self.colour[edge] = -1


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _bits(bits: int) -> Iterator[int]:
    """Positions of the bits that are set, ascending."""
    while bits:
        yield _lowest(bits)
        bits &= bits - 1


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
