"""Rings: reduce-scatter and allgather around groups of ranks, and collectives built from them.

The ring algorithms are those of Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations", JPDC 69(2), 2009. The position p of a group owns a shard. In step s of
the reduce-scatter it passes the shard of position p - s - 1 to its right neighbour, which adds it;
after n - 1 steps each shard has come home complete. In step s of the allgather it passes the shard
of position p - s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harp.collectives.collective_plan import Plan, Stage
from harp.collectives.ir import Buffer, Feeds, Op, Phase, Transfers
from harp.collectives.layout import Groups, Shards

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harp.collectives.ir import Index, Ints, Ranks
    from harp.collectives.request import Request


@dataclass(frozen=True, eq=False)
class Ring(Stage):
    """One trip around the ring of every group at once: n - 1 steps, each rank sends to the next."""

    pipelined = True

    label: str
    groups: Groups
    shards: Shards
    op: Op
    """REDUCE makes it a reduce-scatter, COPY an allgather."""
    buffer: Buffer = Buffer.DATA
    held: Ranks | None = None
    """The shard that each member owns, shape (groups, size); by default its position."""

    @property
    def steps(self) -> int:
        """One less than the members of a ring."""
        return self.groups.size - 1

    def _shard(self, group: Ints, position: Ints) -> Ints | Ranks:
        wrapped = position % self.groups.size
        return wrapped if self.held is None else self.held[group, wrapped]

    def _rows(self, group: Ints, position: Ints, index: Index) -> Transfers:
        members, right = self.groups.members, (position + 1) % self.groups.size
        lag = 1 if self.op == Op.REDUCE else 0
        shard = self._shard(group, position - index - lag)
        return Transfers.build(
            step=index, src=members[group, position], dst=members[group, right], op=self.op,
            src_buffer=self.buffer, src_offset=self.shards.start(group, shard),
            length=self.shards.length(group, shard))

    def step(self, index: int) -> Transfers:
        """One message from every rank to its right neighbour."""
        groups, size = self.groups.members.shape
        return self._rows(np.arange(groups)[:, None], np.arange(size)[None, :], index)

    def sends(self, rank: int) -> Transfers:
        """One message a step, to the right neighbour."""
        group, position = self.groups.find(rank)
        return self._rows(group, position, np.arange(self.steps))

    def receives(self, rank: int) -> Transfers:
        """One message a step, from the left neighbour."""
        group, position = self.groups.find(rank)
        return self._rows(group, (position - 1) % self.groups.size, np.arange(self.steps))

    def phases(self) -> Iterator[Phase]:
        """One phase: every edge carries all shards of its ring but one."""
        members = self.groups.members
        rings = np.arange(len(members))[:, None]
        positions = np.arange(self.groups.size)[None, :]
        # The one that an edge never carries is its sender's own (reduce-scatter) or its receiver's.
        spared = self._shard(rings, positions if self.op == Op.REDUCE else positions + 1)
        carried = self.shards.range_bytes[rings] - self.shards.length(rings, spared)
        edge = np.arange(members.size).reshape(members.shape)
        feeds = Feeds(edge.ravel(), np.roll(edge, -1, axis=1).ravel(), 1,
                      np.zeros(members.size, np.int64))
        yield Phase(self.label, members.ravel(), np.roll(members, -1, axis=1).ravel(),
                    carried.ravel(), self.steps, self.groups.numbers, feeds)


def _whole(request: Request) -> tuple[Groups, Shards]:
    groups = Groups(request.placement()[None, :])
    return groups, Shards.of(request.nbytes, request.unit_bytes, request.ranks)


def ring(request: Request) -> Plan:
    """Ring allreduce: 2(N-1) steps.

    Time 2(N-1)·(alpha + S/(N·B)) for shards of up to a slot (Patarasuk and Yuan 2009).
    """
    groups, shards = _whole(request)
    stages = (Ring("ring reduce-scatter", groups, shards, Op.REDUCE),
              Ring("ring allgather", groups, shards, Op.COPY))
    return Plan("ring", "allreduce", request.ranks, request.nbytes, request.unit_bytes, stages,
                {Buffer.DATA: request.nbytes})


def reduce_scatter(request: Request) -> Plan:
    """Ring reduce-scatter: rank r ends with shard r of the sum, in its place in DATA.

    Time (N-1)·(alpha + S/(N·B)) for shards of up to a slot (Patarasuk and Yuan 2009).
    """
    groups, shards = _whole(request)
    stage = Ring("ring reduce-scatter", groups, shards, Op.REDUCE, held=groups.members)
    return Plan("reduce-scatter", "reduce_scatter", request.ranks, request.nbytes,
                request.unit_bytes, (stage,), {Buffer.DATA: request.nbytes})


def allgather(request: Request) -> Plan:
    """Ring allgather: rank r brings shard r, in its place in DATA; S is the size of the result.

    Time (N-1)·(alpha + S/(N·B)) for shards of up to a slot (Patarasuk and Yuan 2009).
    """
    groups, shards = _whole(request)
    stage = Ring("ring allgather", groups, shards, Op.COPY, held=groups.members)
    return Plan("allgather", "allgather", request.ranks, request.nbytes, request.unit_bytes,
                (stage,), {Buffer.DATA: request.nbytes})


def two_level(request: Request) -> Plan:
    """2D allreduce: reduce-scatter within hosts, g concurrent rings between them, allgather within.

    With N = g·M ranks, alpha1 and B1 within a host, alpha2 and B2 of a host's port that its g ranks
    share, the time is 2(g-1)·(alpha1 + S/(g·B1)) + 2(M-1)·(alpha2 + S/(M·B2)) (Jia et al., "Highly
    scalable deep learning training system with mixed-precision", arXiv 1807.11205; Horovod
    has it as torus allreduce).

    Raises:
        ValueError: ``group`` is missing or does not divide the ranks.

    """
    hosts = request.hosts("2d")
    machines, local = hosts.shape
    inside, between = Groups(hosts), Groups(hosts.T)
    whole = Shards.of(request.nbytes, request.unit_bytes, local, machines)
    shard = whole.within(machines)
    stages = (Ring("intra reduce-scatter", inside, whole, Op.REDUCE),
              Ring("inter reduce-scatter", between, shard, Op.REDUCE),
              Ring("inter allgather", between, shard, Op.COPY),
              Ring("intra allgather", inside, whole, Op.COPY))
    return Plan("2d", "allreduce", request.ranks, request.nbytes, request.unit_bytes, stages,
                {Buffer.DATA: request.nbytes})
