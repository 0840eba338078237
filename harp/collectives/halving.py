"""Recursive halving-doubling: Rabenseifner's allreduce for any number of ranks.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH", IJHPCA 19(1), 2005. Of N ranks the first m = 2^d (the largest power of two) take part; each
of the N - m others first adds its whole buffer to one of them and gets the result at the end. In
step s of the reduce-scatter, partners at distance 2^s exchange halves of what they still hold, so
the largest messages go to the nearest positions; the allgather retraces these steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
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


@dataclass(frozen=True, eq=False)
class Halving(Stage):
    """Exchanges at doubling (REDUCE) or, in the allgather, halving (COPY) distance."""

    label: str
    groups: Groups
    """One group, of every rank; its first ``shards.parts`` (a power of two) positions take part."""
    shards: Shards
    op: Op

    @property
    def steps(self) -> int:
        """Binary logarithm of the ranks that take part."""
        return self.shards.parts.bit_length() - 1

    @cached_property
    def _reversed(self) -> Ints:
        """Each position with its bits in reverse order: the shard that it ends with."""
        turned, position = np.zeros(self.shards.parts, np.int64), np.arange(self.shards.parts)
        for _ in range(self.steps):
            turned = (turned << 1) | (position & 1)
            position = position >> 1
        return turned

    def _level(self, index: Ints) -> Ints:
        # The halving that a step does (REDUCE) or undoes (COPY), from 0.
        return index if self.op == Op.REDUCE else self.steps - 1 - index

    def _partner(self, position: Ints, index: Ints) -> Ints:
        return position ^ (np.int64(1) << self._level(index))

    def _rows(self, position: Ints, index: Ints) -> Transfers:
        members, partner = self.groups.members[0], self._partner(position, index)
        rest = self.steps - 1 - self._level(index)
        # The half that the partner keeps (REDUCE), or that this position has gathered (COPY).
        keeper = partner if self.op == Op.REDUCE else position
        first = self._reversed[keeper] >> rest << rest
        start = self.shards.start(0, first)
        return Transfers.build(
            step=index, src=members[position], dst=members[partner], op=self.op,
            src_offset=start, length=self.shards.start(0, first + (1 << rest)) - start)

    def step(self, index: int) -> Transfers:
        """Every position and its partner exchange."""
        return self._rows(np.arange(self.shards.parts), np.array(index))

    def _takes_part(self, rank: int) -> Ints | None:
        position = self.groups.find(rank)[1]
        return position if position < self.shards.parts else None

    def sends(self, rank: int) -> Transfers:
        """One message a step, or none at all for a rank that was folded in."""
        position = self._takes_part(rank)
        steps = np.arange(self.steps)
        return Transfers.empty() if position is None else self._rows(position, steps)

    def receives(self, rank: int) -> Transfers:
        """One message a step, or none at all for a rank that was folded in."""
        position = self._takes_part(rank)
        steps = np.arange(self.steps)
        if position is None:
            return Transfers.empty()
        return self._rows(self._partner(position, steps), steps)

    def phases(self) -> Iterator[Phase]:
        """One phase a step, since each step has edges of its own."""
        for index in range(self.steps):
            rows = self.step(index)
            yield Phase(f"{self.label} {index + 1}", rows.src, rows.dst, rows.length, 1,
                        np.arange(len(rows), dtype=np.int32))


def halving_doubling(request: Request) -> Plan:
    """Recursive halving-doubling allreduce.

    Time 2·log₂(m)·alpha + 2(m-1)/m·S/B for N = m a power of two, plus 2·(alpha + S/B) otherwise
    (Thakur, Rabenseifner and Gropp 2005).
    """
    order = request.placement()
    power = 1 << (request.ranks.bit_length() - 1)
    groups = Groups(order[None, :])
    shards = Shards.of(request.nbytes, request.unit_bytes, power)
    whole = Shards.of(request.nbytes, request.unit_bytes, 1)
    excess, host = order[power:], order[:request.ranks - power]
    stages = (Stream("fold in", whole_edges(excess, host, Op.REDUCE), whole),
              Halving("halving", groups, shards, Op.REDUCE),
              Halving("doubling", groups, shards, Op.COPY),
              Stream("fold out", whole_edges(host, excess, Op.COPY), whole))
    return Plan("halving-doubling", "allreduce", request.ranks, request.nbytes, request.unit_bytes,
                stages, {Buffer.DATA: request.nbytes})
