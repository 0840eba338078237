"""Groups of ranks that communicate: one for each way to split a model.

Ranks are consecutive in tensor-parallel groups, then in context-parallel ones, and stages of the
pipeline lie farthest apart (`sim.schema.parallel_keys`). One stage stands for all, and of groups
inside hosts those of the first host do, since all others do the same on links of their own. Groups
that take several hosts, and pairs of stages, share no NIC with others: the first of them stand for
all, unless hosts share links between switches (``beside``).

- replicas: ranks with the same share of the parameters, whose gradients are averaged (also those
  of a context-parallel group);
- tensor, context, experts: ranks that share a layer;
- shard, copies: of hybrid sharding, ranks that have all parameters in shards, by default those of
  a host, and those of the same number in all such groups;
- expert copies: ranks that hold the same part of the same experts; expert shards: those of them
  in one group of shards;
- stages: a rank and the one of the next stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.schema.parallel_keys import Parallel

Group = Literal["replicas", "tensor", "context", "experts", "shard", "copies", "expert copies",
                "expert shards", "stages"]
GROUPS: tuple[Group, ...] = ("replicas", "tensor", "context", "experts", "shard", "copies",
                             "expert copies", "expert shards", "stages")


@dataclass(frozen=True)
class Groups:
    """Groups of a job of ``ranks`` ranks on hosts of ``host`` each."""

    layout: Parallel
    ranks: int
    host: int
    beside: bool = False
    """Whether groups of a stage that leave their hosts are simulated beside one another."""

    @property
    def stage(self) -> int:
        """Ranks of a stage."""
        return self.ranks // self.layout.pipeline

    @property
    def local(self) -> int:
        """Ranks of a stage on one host."""
        return min(self.host, self.stage)

    @property
    def sharded(self) -> int:
        """Ranks of a stage that have all of its parameters in shards, with hybrid sharding."""
        return self.stage // self.layout.replicate if self.layout.replicate else self.local

    @property
    def expert(self) -> int:
        """Ranks that send one another tokens of a layer's experts."""
        most = self.stage // self.layout.tensor
        return min(self.layout.expert or most, most)

    @property
    def spread(self) -> int:
        """Ranks over which a layer's experts are spread: a tensor group splits each of them."""
        return self.expert * self.layout.tensor

    def of(self, group: Group) -> list[Sequence[int]]:
        """Ranks of the groups that are simulated at once."""
        return self._found[group]

    @cached_property
    def _found(self) -> dict[Group, list[Sequence[int]]]:
        """All of them; made once, since every collective of every step asks."""
        tensor, stage, sharded, spread = self.layout.tensor, self.stage, self.sharded, self.spread
        return {
            "replicas": [range(first, stage, tensor) for first in range(tensor)],
            "tensor": self._rows(tensor),
            "context": [row[first::tensor] for row in self._rows(tensor * self.layout.context)
                        for first in range(tensor)],
            "experts": [row[first::tensor] for row in self._rows(spread)
                        for first in range(tensor)],
            "expert copies": [range(first, stage, spread) for first in range(spread)],
            "expert shards": [row[first::spread] for row in self._rows(sharded)
                              for first in range(min(spread, sharded))],
            "shard": [row[first::tensor] for row in self._rows(sharded)
                      for first in range(tensor)],
            "copies": [range(first, stage, sharded) for first in range(sharded)],
            "stages": [(first, (first + stage) % self.ranks)
                       for first in range(stage if self.beside else self.local)]}

    def _rows(self, size: int) -> list[Sequence[int]]:
        """Groups of ``size`` neighbours that are simulated."""
        most = self.stage if self.beside and size > self.local else max(self.local, size)
        return [range(first, first + size) for first in range(0, most, size)]

    def size(self, group: Group) -> int:
        """Ranks of a group."""
        return len(self.of(group)[0])

    def each(self, group: Group) -> int:
        """Ranks of a group on each host."""
        if group not in self._each:
            ranks = self.of(group)[0]
            self._each[group] = max(1, sum(rank < ranks[0] - ranks[0] % self.host + self.host
                                           for rank in ranks))
        return self._each[group]

    @cached_property
    def _each(self) -> dict[Group, int]:
        return {}


def expert_shards(layout: Parallel) -> Group:
    """Ranks that share out the states of the experts that they hold."""
    return "expert shards" if layout.shard == "hsdp" else "expert copies"
