"""Recursive doubling: the allreduce with the fewest steps; each sends the whole buffer.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH", IJHPCA 19(1), 2005. Of N ranks the first m = 2^d (the largest power of two) take part; each
of the N - m others first adds its whole buffer to one of them and gets the result at the end. In
step s partners at distance 2^s exchange what they hold, and both add. Addition and the like are
commutative, so partners end with the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harp.collectives.collective_plan import Plan, Stage
from harp.collectives.ir import Buffer, Op, Phase, Transfers
from harp.collectives.layout import Groups, Shards
from harp.collectives.tree import Stream, whole_edges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harp.collectives.ir import Ints
    from harp.collectives.request import Request


def find_partners(rank: int, ranks: int) -> tuple[int, ...]:
    """Name the ranks with which ``rank`` exchanges messages, where no order is given."""
    power = 1 << (ranks.bit_length() - 1)
    if rank >= power:
        return (rank - power,)
    folded = (rank + power,) if rank + power < ranks else ()
    return (*folded, *(rank ^ 1 << step for step in range(power.bit_length() - 1)))


@dataclass(frozen=True, eq=False)
class Doubling(Stage):
    """Exchanges of all bytes with partners at doubling distance."""

    label: str
    groups: Groups
    """One group, of every rank; its first ``power`` positions take part."""
    power: int
    whole: Shards

    @property
    def steps(self) -> int:
        """Binary logarithm of the ranks that take part."""
        return self.power.bit_length() - 1

    def _rows(self, position: Ints, index: Ints) -> Transfers:
        members, partner = self.groups.members[0], position ^ (np.int64(1) << index)
        return Transfers.build(step=index, src=members[position], dst=members[partner],
                               op=Op.REDUCE, src_offset=self.whole.start(0, 0),
                               length=self.whole.length(0, 0))

    def step(self, index: int) -> Transfers:
        """Every position and its partner exchange."""
        return self._rows(np.arange(self.power), np.array(index))

    def sends(self, rank: int) -> Transfers:
        """One message a step, or none at all for a rank that was folded in."""
        position, steps = self.groups.find(rank)[1], np.arange(self.steps)
        return self._rows(position, steps) if position < self.power else Transfers.empty()

    def receives(self, rank: int) -> Transfers:
        """One message a step, or none at all for a rank that was folded in."""
        position, steps = self.groups.find(rank)[1], np.arange(self.steps)
        if position >= self.power:
            return Transfers.empty()
        return self._rows(position ^ (np.int64(1) << steps), steps)

    def phases(self) -> Iterator[Phase]:
        """One phase a step, since each step has edges of its own."""
        for index in range(self.steps):
            rows = self.step(index)
            yield Phase(f"{self.label} {index + 1}", rows.src, rows.dst, rows.length, 1,
                        np.arange(len(rows), dtype=np.int32))


def recursive_doubling(request: Request) -> Plan:
    """Recursive doubling allreduce.

    Time log₂(m)·(alpha + S/B) for N = m a power of two, plus 2·(alpha + S/B) otherwise (Thakur,
    Rabenseifner and Gropp 2005).
    """
    order = request.placement()
    power = 1 << (request.ranks.bit_length() - 1)
    whole = Shards.of(request.nbytes, request.unit_bytes, 1)
    excess, host = order[power:], order[:request.ranks - power]
    stages = (Stream("fold in", whole_edges(excess, host, Op.REDUCE), whole),
              Doubling("doubling", Groups(order[None, :]), power, whole),
              Stream("fold out", whole_edges(host, excess, Op.COPY), whole))
    return Plan("recursive-doubling", "allreduce", request.ranks, request.nbytes,
                request.unit_bytes, stages, {Buffer.DATA: request.nbytes})
