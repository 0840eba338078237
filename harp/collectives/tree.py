"""Pipelined trees: the double binary tree allreduce and broadcast.

Two binary trees span all ranks, each for one half of the data, such that a rank with children in
one tree is a leaf in the other (with an odd number of ranks, all but one). Both halves are cut into
chunks that follow one another, so that every port is busy in both directions.

Source: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
scan", Parallel Computing 35(12), 2009. The shape of the trees is NCCL's (2.4 and later): label r
has its children at r ± half its lowest set bit; the second tree is the mirror image of the first
where the number of ranks is even, and the first shifted by one where it is odd.

With ``group`` the binary trees span the hosts, as NCCL's do, and a chain runs through each. A host
then sends and receives a byte of each tree at most three times, whatever its number of ranks.

With one rank a host, D the depth of a tree, C the number of chunks and c = S/(2C) their size, the
allreduce takes 2D + C - 1 steps and

    2D·(alpha + 2c/B) + (C - 1)·4c/B,      D = ⌊log₂(N - 1)⌋ + 1;

a rank moves 4 chunks a step in each direction at the steady pace, 2S over all (S for N = 2, 1.5 S
for N = 3). The real time is at most (2D + 4)·c/B shorter, since the roots have one child each and
not all ports are busy while the pipeline fills.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from harp.collectives.collective_plan import Plan, Stage
from harp.collectives.ir import Buffer, Feeds, Op, Phase, Transfers
from harp.collectives.layout import Shards

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from harp.collectives.ir import Bools, Ints, Ranks
    from harp.collectives.request import Request


@dataclass(frozen=True, eq=False)
class Edges:
    """Streams as arrays: edge e sends its chunk i from ``src`` to ``dst`` in step ``start`` + i."""

    src: Ranks
    dst: Ranks
    start: Ints
    op: NDArray[np.int8]
    part: Ints
    """The range of bytes (a group of the stage's shards) that the edge carries."""

    @classmethod
    def concat(cls, parts: list[Edges]) -> Edges:
        """All edges of ``parts``."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts])
                     for name in ("src", "dst", "start", "op", "part")))


@dataclass(frozen=True, eq=False)
class Stream(Stage):
    """Edges that each carry a byte range, chunk after chunk, from a step of their own."""

    pipelined = True

    label: str
    edges: Edges
    chunks: Shards
    """One group a range; its parts are the chunks."""

    @cached_property
    def _last_start(self) -> int:
        return int(self.edges.start.max(initial=-1))

    @property
    def steps(self) -> int:
        """The steps until the last edge has sent its last chunk."""
        return self._last_start + self.chunks.parts if len(self.edges.src) else 0

    def _rows(self, edge: Ints, chunk: Ints) -> Transfers:
        part = self.edges.part[edge]
        return Transfers.build(
            step=self.edges.start[edge] + chunk, src=self.edges.src[edge], dst=self.edges.dst[edge],
            op=self.edges.op[edge], src_offset=self.chunks.start(part, chunk),
            length=self.chunks.length(part, chunk))

    def step(self, index: int) -> Transfers:
        """One chunk on every edge that is due in this step."""
        chunk = index - self.edges.start
        edge = np.flatnonzero((chunk >= 0) & (chunk < self.chunks.parts))
        return self._rows(edge, chunk[edge])

    def _all_chunks(self, of: Bools) -> Transfers:
        return self._rows(np.flatnonzero(of)[:, None], np.arange(self.chunks.parts)[None, :])

    def sends(self, rank: int) -> Transfers:
        """All chunks of the edges that leave ``rank``."""
        return self._all_chunks(self.edges.src == rank)

    def receives(self, rank: int) -> Transfers:
        """All chunks of the edges that end at ``rank``."""
        return self._all_chunks(self.edges.dst == rank)

    def phases(self) -> Iterator[Phase]:
        """One phase in which all edges stream at once."""
        edges = self.edges
        source, target = self._dependences()
        none_wait = not self._last_start
        group = np.arange(len(edges.src)) if none_wait else edges.part
        yield Phase(self.label, edges.src, edges.dst, self.chunks.range_bytes[edges.part],
                    self.chunks.parts, group.astype(np.int32),
                    Feeds(source, target, 0, edges.start))

    def _dependences(self) -> tuple[Ints, Ints]:
        """Pairs of edges (one, other): the second passes on what the first brings.

        A copied piece came by a copy, or (to the root) by reductions; a reduced one by reductions.
        """
        edges = self.edges
        copied = self._brought(edges.src, np.full(len(edges.src), Op.COPY))
        reduced = self._brought(edges.src, np.full(len(edges.src), Op.REDUCE))
        has_copy = np.isin(np.arange(len(edges.src)), copied[1])
        first = (edges.op == Op.COPY)[copied[1]]
        second = ((edges.op == Op.REDUCE) | ~has_copy)[reduced[1]]
        return (np.concatenate([copied[0][first], reduced[0][second]]),
                np.concatenate([copied[1][first], reduced[1][second]]))

    def _brought(self, rank: Ranks, op: Ints) -> tuple[Ints, Ints]:
        """Pairs (edge that ends at ``rank[e]`` with ``op[e]`` and e's range, e)."""
        edges, parts = self.edges, len(self.chunks.base)
        key = (edges.dst.astype(np.int64) * parts + edges.part) * 2 + edges.op
        order = np.argsort(key, kind="stable")
        wanted = (rank.astype(np.int64) * parts + edges.part) * 2 + op
        first, last = (np.searchsorted(key[order], wanted, side) for side in ("left", "right"))
        count = last - first
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        return order[np.repeat(first, count) + within], np.repeat(np.arange(len(rank)), count)


def whole_edges(src: Ranks, dst: Ranks, op: Op) -> Edges:
    """Edges that all start in step 0 and carry range 0."""
    none = np.zeros(len(src), np.int64)
    return Edges(src, dst, none, np.full(len(src), op, np.int8), none)


def binary_tree(size: int) -> tuple[Ints, Ints]:
    """Parent and depth of each label of NCCL's binary tree; label 0 is the root, its parent -1."""
    label = np.arange(size, dtype=np.int64)
    low = label & -label
    above = (label ^ low) | (low << 1)
    parent = np.where(above < size, above, label ^ low)
    parent[0] = -1
    depth, at = np.zeros(size, np.int64), parent
    while (at >= 0).any():
        depth += at >= 0
        at = np.where(at >= 0, parent[at], -1)
    return parent, depth


def two_trees(order: Ranks) -> tuple[list[tuple[Ranks, Ranks, Ints]], tuple[int, int], int]:
    """Both trees over the ranks of ``order``.

    Returns:
        For each tree (child, parent, depth of the child), all but the root; the two roots; and the
        depth of the trees.

    """
    parent, depth = binary_tree(len(order))
    # NCCL's pairing: a rank with children in one tree is a leaf in the other.
    second = order[::-1] if len(order) % 2 == 0 else np.roll(order, -1)
    trees = [(ranks[1:], ranks[parent[1:]], depth[1:]) for ranks in (order, second)]
    return trees, (int(order[0]), int(second[0])), int(depth.max())


def _halves(request: Request) -> Shards:
    units = request.nbytes // request.unit_bytes
    first = units // 2
    longest = (units - first) * request.unit_bytes
    return Shards(np.array([0, first * request.unit_bytes]), np.array([first, units - first]),
                  max(1, -(-longest // request.chunk_bytes)), request.unit_bytes)


def _edges(src: Ranks | Ints, dst: Ranks | Ints, start: Ints, op: Op, part: int) -> Edges:
    return Edges(src.astype(np.int32), dst.astype(np.int32), start,
                 np.full(len(src), op, np.int8), np.full(len(src), part, np.int64))


@dataclass(frozen=True, eq=False)
class SpanningTree:
    """A tree over all ranks; one entry a rank."""

    parent: Ints
    """-1 at the root."""
    height: Ints
    """Hops from the farthest leaf below."""
    depth: Ints
    """Hops to the root."""

    @classmethod
    def of(cls, parent: Ints) -> SpanningTree:
        """Count the hops."""
        height, depth = np.zeros((2, len(parent)), np.int64)
        child = np.flatnonzero(parent >= 0)
        at = parent.copy()
        while len(child):
            np.maximum.at(height, at[child], depth[child] + 1)
            depth[child] += 1
            at[child] = parent[at[child]]
            child = child[at[child] >= 0]
        return cls(parent, height, depth)


def host_trees(hosts: Ranks) -> list[SpanningTree]:
    """NCCL's two trees: binary over the hosts, and a chain through the ranks of each.

    A chain's first rank has the parent's host above it and the second child's below; the first
    child's host is below the second rank, so that two GPUs share the traffic (NCCL's balanced
    tree: src/graph/connect.cc of 2.30). ``hosts`` has a row for each host.
    """
    machines, local = hosts.shape
    above, _ = binary_tree(machines)
    trees = []
    # NCCL's pairing: a host with children in one tree is a leaf in the other.
    for order in (hosts, hosts[::-1] if machines % 2 == 0 else np.roll(hosts, -1, axis=0)):
        parent = np.full(hosts.size, -1, np.int64)
        parent[order[:, 1:]] = order[:, :-1]
        label = np.arange(1, machines)
        first_child = label < above[1:]
        parent[order[1:, 0]] = order[above[1:], np.where(first_child, min(1, local - 1), 0)]
        trees.append(SpanningTree.of(parent))
    return trees


def double_binary_tree(request: Request) -> Plan:
    """Double binary tree allreduce: reduce towards both roots and broadcast back, pipelined.

    With ``group`` the trees are over hosts, and a chain runs through each host's ranks. Formula and
    source: see the module. ``chunk_bytes`` is the largest chunk.
    """
    hosts = request.placement()[:, None] if request.group is None else request.hosts("tree")
    edges = []
    for part, tree in enumerate(host_trees(hosts)):
        child = np.flatnonzero(tree.parent >= 0)
        parent = tree.parent[child]
        down = tree.height.max() + tree.depth[parent]
        edges.append(_edges(child, parent, tree.height[child], Op.REDUCE, part))
        edges.append(_edges(parent, child, down, Op.COPY, part))
    stage = Stream("double tree allreduce", Edges.concat(edges), _halves(request))
    return Plan("tree", "allreduce", request.ranks, request.nbytes, request.unit_bytes, (stage,),
                {Buffer.DATA: request.nbytes})


def broadcast(request: Request) -> Plan:
    """Double binary tree broadcast: the root feeds two trees over the other ranks, half of it each.

    Time (D + 1)·alpha + (D + C)·2c/B with D the depth of a tree of N - 1 ranks and c = S/(2C), so
    S/B for long messages (Sanders, Speck and Träff 2009).
    """
    order = request.placement()
    others = order[order != request.root]
    stages: tuple[Stream, ...] = ()
    if len(others):
        edges = []
        trees, roots, _ = two_trees(others)
        for part, (child, parent, depth) in enumerate(trees):
            first = np.array([request.root], np.int32), np.array([roots[part]], np.int32)
            edges.append(_edges(*first, np.zeros(1, np.int64), Op.COPY, part))
            edges.append(_edges(parent, child, depth, Op.COPY, part))
        stages = (Stream("double tree broadcast", Edges.concat(edges), _halves(request)),)
    return Plan("broadcast", "broadcast", request.ranks, request.nbytes, request.unit_bytes, stages,
                {Buffer.DATA: request.nbytes}, root=request.root)
