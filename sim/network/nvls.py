"""NVLink SHARP: all-reduce with the sums made in the switch (NCCL's NVLS and NVLSTree).

A GPU asks the switch for the sum of its shard: the switch reads the other GPUs' copies, adds, and
hands over one result; what the GPU writes back, the switch copies to all (multicast). So of S bytes
a GPU's link carries S + S / n each way, n GPUs to a host, where a ring's carries 2 S (n - 1) / n
(NVIDIA, "Upgrading Multi-GPU Interconnectivity with the Third-Generation NVSwitch", Hot Chips 2022:
N + 1 transfers instead of 2 N). The engines reach 0.85 of the rate that rings reach on Hopper and
0.74 on Blackwell (nvlsEfficiency in src/graph/tuning.cc, NVIDIA/nccl 2.30; published). Between
hosts each GPU exchanges its shard over its own NIC, in NCCL's two trees over the hosts, while other
pieces pass the switch (NVLSTree).

NCCL goes through the data in loops, a chunk of each shard on each channel. A kernel moves a loop
from the user's memory to the switch's before the sum, and back after the copy; the next loops are
summed meanwhile, so that all of it takes as long as one loop more.

Nothing executes such a plan here: it is a pattern of loads, for times. Of links inside a host a
stream from each GPU to the next stands for what it gives to the switch and takes from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from harp.collectives.collective_plan import Plan
from harp.collectives.ir import Buffer, Feeds, Op, Phase
from harp.collectives.layout import Shards
from harp.collectives.protocol import Protocol
from harp.collectives.tree import Edges, Stream, host_trees
from harp.collectives.window import Window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

EFFICIENCY = {"hopper": 0.85, "blackwell": 0.74}
"""Share of a ring's rate inside a host."""
HOP_US = 25.0
"""Latency of NVLS over NVLink by NCCL's table (hwLatencies, the same file): in and out, with the
launch of the kernel, for which the table has nothing beside it."""
LAUNCH_US = 10.0
"""The part that is the launch, as stack ``rdma`` has it."""
NET_US = 20.9
"""Latency of a step of NVLSTree between hosts by the same table, which has 14 us for Simple's."""
_WINDOW = Window(8, 1 << 20, channel_bytes=128 << 10, most_channels=16, halves=False)
NVLS = Protocol("Simple", 1.0, _WINDOW, (HOP_US - LAUNCH_US) / 2 / 3.4, (14.0 - NET_US) * 1e-6)
"""Simple's signals with NVLS's chunks (NCCL_NVLS_CHUNKSIZE, 128 KiB, one of each of eight shards
at a time) on its channels, and two hops in a host."""
_INSIDE, _BETWEEN = 0, 1
_CHANNELS = {EFFICIENCY["hopper"]: 16, EFFICIENCY["blackwell"]: 32}
"""Of NVLS (src/transport/nvls.cc, 2.27)."""
_CHUNKS = {"one": ((128 << 10, 64), (64 << 10, 8), (32 << 10, 2), (16 << 10, 0)),
           "few": ((128 << 10, 4), (64 << 10, 1), (32 << 10, 0)),
           "many": ((64 << 10, 1), (32 << 10, 0))}
"""Chunks in one host, in two or three, and in more, and how many of them on each channel and shard
a collective has at least (calcCollChunking, src/enqueue.cc, and ncclNvlsTuning, 2.19 to 2.30)."""


@dataclass(frozen=True, eq=False)
class SwitchStream(Stream):
    """Streams through the switch of each host, and shards between hosts."""

    loops: int = 1
    """Pieces, one after the other, that all edges carry."""

    def phases(self) -> Iterator[Phase]:
        """One phase: every edge passes on what has come to its rank before."""
        edges = self.edges
        source, target = _meetings(edges)
        yield Phase(self.label, edges.src, edges.dst, self.chunks.range_bytes[edges.part],
                    self.loops, edges.part.astype(np.int32),
                    Feeds(source, target, 0, edges.start))


def _meetings(edges: Edges) -> tuple[Ints, Ints]:
    """Pairs of edges (one, other): the second leaves where and after the first has come."""
    order = np.argsort(edges.dst, kind="stable")
    first = np.searchsorted(edges.dst[order], edges.src, "left")
    count = np.searchsorted(edges.dst[order], edges.src, "right") - first
    target = np.repeat(np.arange(len(edges.src)), count)
    within = np.arange(len(target)) - np.repeat(np.cumsum(count) - count, count)
    source = order[np.repeat(first, count) + within]
    before = edges.start[source] < edges.start[target]
    return source[before], target[before]


def loops_of(nbytes: int, machines: int, group: int, efficiency: float) -> int:
    """Number of loops: in each a chunk of every shard passes on every channel."""
    lanes = _CHANNELS[efficiency] * group
    chunks = _CHUNKS["one" if machines == 1 else "few" if machines < 4 else "many"]
    chunk = next(chunk for chunk, least in chunks if nbytes >= least * lanes * chunk)
    return max(1, -(-nbytes // (lanes * chunk)))


@lru_cache(maxsize=256)
def nvls_plan(ranks: int, group: int, nbytes: int, unit_bytes: int, efficiency: float) -> Plan:
    """All-reduce of ``nbytes`` over ``ranks``, ``group`` of them a host, host after host."""
    machines = ranks // group
    here = np.arange(ranks, dtype=np.int64)
    following = here - here % group + (here + 1) % group
    up_src, up_dst, up_start, down_src, down_dst, down_start = (
        _between(machines, group) if machines > 1 else [np.empty(0, np.int64)] * 6)
    last = int(max(down_start.max(initial=0), up_start.max(initial=0))) + 1
    src = np.concatenate([here, up_src, down_src, here])
    dst = np.concatenate([following, up_dst, down_dst, following])
    start = np.concatenate([np.zeros(ranks), up_start, down_start, np.full(ranks, last)])
    outer = len(up_src) + len(down_src)
    part = np.repeat([_INSIDE, _BETWEEN, _INSIDE], [ranks, outer, ranks])
    op = np.full(len(src), Op.COPY, np.int8)
    loops = loops_of(nbytes, machines, group, efficiency)
    inside = nbytes * (1 + 1 / group) / 2 / efficiency * (1 + 1 / loops)
    units = np.array([inside, nbytes / (2 * group)]) // unit_bytes
    stage = SwitchStream("NVLS", Edges(src.astype(np.int32), dst.astype(np.int32),
                                       start.astype(np.int64), op, part),
                         Shards(np.zeros(2, np.int64), np.maximum(units, 1).astype(np.int64), 1,
                                unit_bytes), loops if machines > 1 else 1)
    return Plan("nvls", "allreduce", ranks, nbytes, unit_bytes, (stage,), {Buffer.DATA: nbytes})


def _between(machines: int, group: int) -> list[Ints]:
    """Edges of both trees over the hosts, for the ranks of each place in a host."""
    columns: list[list[Ints]] = [[] for _ in range(6)]
    place = np.arange(group)
    for tree in host_trees(np.arange(machines, dtype=np.int32)[:, None]):
        child = np.flatnonzero(tree.parent >= 0)
        parent = tree.parent[child]
        down = tree.height.max() + tree.depth[parent] + 1
        for column, hosts in zip(columns, (child, parent, None, parent, child, None), strict=True):
            if hosts is not None:
                column.append((hosts[:, None] * group + place).ravel())
        columns[2].append(np.repeat(tree.height[child] + 1, group))
        columns[5].append(np.repeat(down, group))
    return [np.concatenate(column).astype(np.int64) for column in columns]
