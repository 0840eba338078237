"""Sparse allreduce: each rank sends the k largest of its n elements as (value, index) pairs.

k = max(1, ⌊r·n⌋). The slots of all ranks are gathered around a ring and added up at their indices.
The rest stays with the sender as its error (error feedback), which is not a plan's matter.

Sources: Lin et al., "Deep gradient compression", ICLR 2018 (arXiv 1712.01887) for the flat form;
Shi et al., "Towards scalable distributed training of deep learning on public cloud clusters" (arXiv
2010.10458) for selection on the reduce-scattered shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harp.collectives.collective_plan import LocalStage, Plan, Stage
from harp.collectives.ir import Buffer, LocalWork, Op, Phase, local_phase
from harp.collectives.layout import Groups, Shards
from harp.collectives.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harp.collectives.ir import Ints
    from harp.collectives.request import Request


@dataclass(frozen=True, eq=False)
class Sparse:
    """Groups that reduce a dense range each, by way of one slot of pairs for each member."""

    groups: Groups
    dense: Shards
    """The range of each group (one part)."""
    slots: Shards
    """The PAIRS of each group; a part is the slot of the member at that position."""

    @classmethod
    def of(cls, groups: Groups, dense: Shards, request: Request) -> Sparse:
        """Size the slots: ``ratio`` of each group's elements, at least one if there is any."""
        kept = np.maximum(dense.units * request.share.numerator // request.share.denominator,
                          np.minimum(dense.units, 1))
        return cls(groups, dense, Shards(np.zeros_like(kept), kept * groups.size, groups.size,
                                         request.pair_bytes))

    @property
    def pairs_bytes(self) -> int:
        """The size that PAIRS needs."""
        return int(self.slots.range_bytes.max())

    def stages(self, where: str) -> tuple[Stage, ...]:
        """Select, gather the slots around the ring, add them up."""
        gather = Ring(f"{where} pairs allgather", self.groups, self.slots, Op.COPY, Buffer.PAIRS)
        return Local(self, Op.SELECT), gather, Local(self, Op.SCATTER_ADD)


@dataclass(frozen=True, eq=False)
class Local(LocalStage):
    """Selection of top-k pairs, or their scatter-add: one step without messages."""

    sparse: Sparse
    op: Op

    def local_work(self, rank: int) -> Iterator[LocalWork]:
        """From the dense range to the rank's own slot, or from all slots to the dense range."""
        group, position = self.sparse.groups.find(rank)
        dense, slots = self.sparse.dense, self.sparse.slots
        data = (Buffer.DATA, int(dense.base[group]), int(dense.range_bytes[group]))
        own = (Buffer.PAIRS, int(slots.start(group, position)), int(slots.length(group, position)))
        every = (Buffer.PAIRS, int(slots.base[group]), int(slots.range_bytes[group]))
        if not data[2]:
            return
        if self.op == Op.SELECT:
            yield LocalWork(0, rank, self.op, *data, *own, 1)
        else:
            yield LocalWork(0, rank, self.op, *every, *data, slots.parts)

    def phases(self) -> Iterator[Phase]:
        """One phase without edges: dense elements examined, or pairs added, by each rank."""
        select = self.op == Op.SELECT
        counts: Ints = self.sparse.dense.units if select else self.sparse.slots.units
        elements = np.empty(self.sparse.groups.members.size, np.int64)
        elements[self.sparse.groups.members] = counts[:, None]
        yield local_phase("select" if select else "scatter-add", self.op, elements)


def flat(request: Request) -> Plan:
    """Flat sparse allreduce: select on the whole buffer, allgather the pairs, scatter-add.

    Time select(n) + (N-1)·(alpha + k·p/B) + add(N·k), with p bytes a pair (Lin et al. 2018).
    """
    groups = Groups(request.placement()[None, :])
    sparse = Sparse.of(groups, Shards.of(request.nbytes, request.unit_bytes, 1), request)
    return Plan("topk", "allreduce", request.ranks, request.nbytes, request.unit_bytes,
                sparse.stages("flat"),
                {Buffer.DATA: request.nbytes, Buffer.PAIRS: sparse.pairs_bytes})


def sharded(request: Request) -> Plan:
    """2D sparse allreduce: dense within hosts, pairs of the reduce-scattered shard between hosts.

    With k = max(1, ⌊r·n/g⌋) pairs of p bytes a rank:
    2(g-1)·(alpha1 + S/(g·B1)) + select(n/g) + (M-1)·(alpha2 + g·k·p/B2) + add(M·k)
    (Shi et al. 2020).

    Raises:
        ValueError: ``group`` is missing or does not divide the ranks.

    """
    hosts = request.hosts("2d-topk")
    machines, local = hosts.shape
    inside, between = Groups(hosts), Groups(hosts.T)
    whole = Shards.of(request.nbytes, request.unit_bytes, local, machines)
    sparse = Sparse.of(between, whole.within(1), request)
    # On one host nothing is left to exchange, so nothing needs to be dropped.
    middle = sparse.stages("inter") if machines > 1 else ()
    stages = (Ring("intra reduce-scatter", inside, whole, Op.REDUCE), *middle,
              Ring("intra allgather", inside, whole, Op.COPY))
    return Plan("2d-topk", "allreduce", request.ranks, request.nbytes, request.unit_bytes, stages,
                {Buffer.DATA: request.nbytes, Buffer.PAIRS: sparse.pairs_bytes})
