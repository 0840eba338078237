"""All-to-all, direct and hierarchical.

Rank i's block for rank j is shard j of its DATA, so blocks differ by one element at most. Rank j
ends with N blocks of its size in OUT, that of rank i at i times that size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harp.collectives.collective_plan import Plan, Stage
from harp.collectives.ir import Buffer, LocalWork, Op, Phase, Transfers
from harp.collectives.layout import Groups, Shards

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harp.collectives.ir import Index, Ints, Ranks
    from harp.collectives.request import Request


@dataclass(frozen=True, eq=False)
class Exchange(Stage):
    """Base class of an all-to-all's stages: one step, and the size of each rank's blocks."""

    groups: Groups
    blocks: Shards

    @property
    def steps(self) -> int:
        """One: all messages of a stage are independent."""
        return 1

    def _offset(self, rank: Index) -> Ints:
        return self.blocks.start(0, rank)

    def _size(self, rank: Index) -> Ints:
        return self.blocks.length(0, rank)

    def _own_block(self, rank: int) -> Iterator[LocalWork]:
        size = int(self._size(rank))
        if size:
            yield LocalWork(0, rank, Op.COPY, Buffer.DATA, int(self._offset(rank)), size,
                            Buffer.OUT, rank * size, size, 1)


def _independent(label: str, src: Ranks, dst: Ranks, length: Ints) -> Phase:
    sent = length > 0
    return Phase(label, src[sent], dst[sent], length[sent], 1,
                 np.arange(int(sent.sum()), dtype=np.int32))


class Direct(Exchange):
    """Every rank sends to every other at once."""

    def _rows(self, position: Ints, ahead: Ints) -> Transfers:
        """Send from ``position`` to the one ``ahead`` places further on."""
        members = self.groups.members[0]
        src, dst = members[position], members[(position + ahead) % self.groups.size]
        size = self._size(dst)
        return Transfers.build(step=0, src=src, dst=dst, op=Op.COPY, src_offset=self._offset(dst),
                               length=size, dst_buffer=Buffer.OUT, dst_offset=src * size)

    def step(self, index: int) -> Transfers:  # noqa: ARG002  (there is one step)
        """All N·(N - 1) messages; each rank starts with its right neighbour."""
        size = self.groups.size
        return self._rows(np.arange(size)[:, None], np.arange(1, size)[None, :])

    def sends(self, rank: int) -> Transfers:
        """N - 1 messages."""
        return self._rows(self.groups.find(rank)[1], np.arange(1, self.groups.size))

    def receives(self, rank: int) -> Transfers:
        """N - 1 messages."""
        ahead = np.arange(1, self.groups.size)
        return self._rows((self.groups.find(rank)[1] - ahead) % self.groups.size, ahead)

    def local_work(self, rank: int) -> Iterator[LocalWork]:
        """Copy a rank's own block."""
        return self._own_block(rank)

    def phases(self) -> Iterator[Phase]:
        """One phase of N·(N - 1) independent edges."""
        members, size = self.groups.members[0], self.groups.size
        ahead = (np.arange(size)[:, None] + np.arange(1, size)[None, :]) % size
        dst = members[ahead].ravel()
        yield _independent("all-to-all", np.repeat(members, size - 1), dst, self._size(dst))


class WithinHosts(Exchange):
    """First half of the hierarchical one: to each local index, all blocks for that index anywhere.

    ``groups.members[host, local]``. Blocks for other hosts wait in STAGE, sorted by host and then
    by the local index that they came from.
    """

    def _rows(self, host: Ints, local: Ints, ahead: Ints, goal: Ints) -> Transfers:
        """Send from (host, local) what is for (goal, local + ahead) to (host, local + ahead)."""
        members, group = self.groups.members, self.groups.size
        to = (local + ahead) % group
        src, final = members[host, local], members[goal, to]
        size, home = self._size(final), np.equal(host, goal)
        slot = stage_offset(self, goal, to) + local * size
        return Transfers.build(
            step=0, src=src, dst=members[host, to], op=Op.COPY, src_offset=self._offset(final),
            length=size, dst_buffer=np.where(home, Buffer.OUT, Buffer.STAGE),
            dst_offset=np.where(home, src * size, slot))

    def step(self, index: int) -> Transfers:  # noqa: ARG002  (there is one step)
        """Every rank to the others of its host, M blocks in each message."""
        hosts, group = self.groups.members.shape
        return self._rows(*np.ix_(np.arange(hosts), np.arange(group), np.arange(1, group),
                                  np.arange(hosts)))

    def _rank_rows(self, rank: int, sign: int) -> Transfers:
        hosts, group = self.groups.members.shape
        host, local = self.groups.find(rank)
        ahead = np.arange(1, group)[:, None]
        sender = local if sign > 0 else (local - ahead) % group
        return self._rows(host, sender, ahead, np.arange(hosts)[None, :])

    def sends(self, rank: int) -> Transfers:
        """G - 1 messages of M blocks."""
        return self._rank_rows(rank, 1)

    def receives(self, rank: int) -> Transfers:
        """G - 1 messages of M blocks."""
        return self._rank_rows(rank, -1)

    def local_work(self, rank: int) -> Iterator[LocalWork]:
        """Copy a rank's own block."""
        return self._own_block(rank)

    def phases(self) -> Iterator[Phase]:
        """One phase of N·(g - 1) independent edges."""
        members, group = self.groups.members, self.groups.size
        to = (np.arange(group)[:, None] + np.arange(1, group)[None, :]) % group
        dst = members[:, to]
        length = np.broadcast_to(self._size(members).sum(axis=0)[to], dst.shape)
        src = np.broadcast_to(members[:, :, None], dst.shape)
        yield _independent("intra all-to-all", src.ravel(), dst.ravel(), length.ravel())


class BetweenHosts(Exchange):
    """Second half: to the equal local index of every other host, the g blocks of the whole host."""

    def _rows(self, host: Ints, local: Ints, ahead: Ints, origin: Ints) -> Transfers:
        """Send from (host, local) the block that (host, origin) has for (host + ahead, local)."""
        members = self.groups.members
        to = (host + ahead) % len(members)
        dst, own = members[to, local], np.equal(origin, local)
        size = self._size(dst)
        slot = stage_offset(self, to, local) + origin * size
        return Transfers.build(
            step=0, src=members[host, local], dst=dst, op=Op.COPY, length=size,
            src_buffer=np.where(own, Buffer.DATA, Buffer.STAGE),
            src_offset=np.where(own, self._offset(dst), slot),
            dst_buffer=Buffer.OUT, dst_offset=members[host, origin] * size)

    def step(self, index: int) -> Transfers:  # noqa: ARG002  (there is one step)
        """Every rank to its equals, g blocks in each message."""
        hosts, group = self.groups.members.shape
        return self._rows(*np.ix_(np.arange(hosts), np.arange(group), np.arange(1, hosts),
                                  np.arange(group)))

    def _rank_rows(self, rank: int, sign: int) -> Transfers:
        hosts, group = self.groups.members.shape
        host, local = self.groups.find(rank)
        ahead = np.arange(1, hosts)[:, None]
        sender = host if sign > 0 else (host - ahead) % hosts
        return self._rows(sender, local, ahead, np.arange(group)[None, :])

    def sends(self, rank: int) -> Transfers:
        """M - 1 messages of g blocks."""
        return self._rank_rows(rank, 1)

    def receives(self, rank: int) -> Transfers:
        """M - 1 messages of g blocks."""
        return self._rank_rows(rank, -1)

    def phases(self) -> Iterator[Phase]:
        """One phase of N·(M - 1) independent edges."""
        members, hosts = self.groups.members, len(self.groups.members)
        to = (np.arange(hosts)[:, None] + np.arange(1, hosts)[None, :]) % hosts
        dst = members.T[:, to]
        src = np.broadcast_to(members.T[:, :, None], dst.shape)
        yield _independent("inter all-to-all", src.ravel(), dst.ravel(),
                           self.groups.size * self._size(dst.ravel()))


def stage_offset(stage: Exchange, host: Ints, local: Ints) -> Ints:
    """Offset of the blocks for (host, local) in the STAGE of the equal local indices."""
    sizes = stage.groups.size * stage.blocks.length(0, stage.groups.members)
    return np.asarray((np.cumsum(sizes, axis=0) - sizes)[host, local])


def _plan(name: str, request: Request, stages: tuple[Stage, ...], blocks: Shards,
          stage_bytes: int = 0) -> Plan:
    largest = int(blocks.length(0, np.arange(request.ranks)).max())
    return Plan(name, "alltoall", request.ranks, request.nbytes, request.unit_bytes, stages,
                {Buffer.DATA: request.nbytes, Buffer.OUT: request.ranks * largest,
                 Buffer.STAGE: stage_bytes})


def direct(request: Request) -> Plan:
    """Direct all-to-all: one step in which each rank sends N - 1 independent messages.

    Time alpha + (N-1)/N·S/B where all are in flight; (N-1)·(alpha + S/(N·B)) where a rank sends one
    after the other (Thakur, Rabenseifner and Gropp 2005). The plan is O(ranks), but its only
    step and its only phase have N·(N - 1) rows: 45 MB of rows for 1,024 ranks, 11 GB for 16,384.
    """
    blocks = Shards.of(request.nbytes, request.unit_bytes, request.ranks)
    stage = Direct(Groups(request.placement()[None, :]), blocks)
    return _plan("alltoall", request, (stage,), blocks)


def hierarchical(request: Request) -> Plan:
    """Hierarchical all-to-all: exchange within hosts, then between equal local indices.

    With alpha1, B1 within a host and alpha2, B2 of a host's port that its g ranks share, and the
    messages of a stage in flight together: alpha1 + (g-1)/g·S/B1 + alpha2 + (M-1)/M·g·S/B2. A rank
    sends M - 1 messages out of its host instead of (M - 1)·g (Hwang et al., "Tutel: adaptive
    mixture-of-experts at scale", MLSys 2023).

    Raises:
        ValueError: ``group`` is missing or does not divide the ranks.

    """
    hosts = request.hosts("hierarchical-alltoall")
    groups = Groups(hosts)
    blocks = Shards.of(request.nbytes, request.unit_bytes, request.ranks)
    if 1 in hosts.shape:
        stages: tuple[Stage, ...] = (Direct(Groups(hosts.reshape(1, -1)), blocks),)
        return _plan("hierarchical-alltoall", request, stages, blocks)
    column = int(hosts.shape[1] * blocks.length(0, hosts).sum(axis=0).max())
    return _plan("hierarchical-alltoall", request,
                 (WithinHosts(groups, blocks), BetweenHosts(groups, blocks)), blocks, column)
