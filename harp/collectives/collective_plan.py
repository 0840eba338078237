"""The plan of a collective: a sequence of stages, each a pattern of messages given by a formula.

A :class:`Stage` holds O(ranks) numbers and computes messages on demand: all of one step, or all of
one rank. A ring of 16,384 ranks is one array of 16,384 members, not 500 million messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from harp.collectives.ir import Buffer, LocalWork, Phase, RankStep, Transfers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from harp.collectives.blocks import Blocks
    from harp.collectives.ir import Message

Collective = Literal["allreduce", "reduce_scatter", "allgather", "broadcast", "alltoall",
                     "alltoallv", "combine"]
_Row = TypeVar("_Row", "Message", LocalWork)


class Stage(ABC):
    """A pattern of messages over ``steps`` steps, numbered from 0 within the stage."""

    pipelined: ClassVar[bool] = False
    """Whether messages pass through ranks without waiting for the end of a step."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Number of steps; a plan leaves out a stage without steps."""

    @abstractmethod
    def step(self, index: int) -> Transfers:
        """All messages of one step, vectorised over the ranks."""

    @abstractmethod
    def sends(self, rank: int) -> Transfers:
        """All that ``rank`` sends, over all steps, without other ranks' messages."""

    @abstractmethod
    def receives(self, rank: int) -> Transfers:
        """All that ``rank`` receives, over all steps, without other ranks' messages."""

    @abstractmethod
    def phases(self) -> Iterator[Phase]:
        """Give the same messages as phases for a fluid simulator."""

    def local_work(self, rank: int) -> Iterator[LocalWork]:  # noqa: ARG002  (a plan without such work)
        """Give what ``rank`` does by itself; nothing unless a stage says otherwise."""
        return iter(())


class LocalStage(Stage):
    """Local work of the ranks: one step without messages."""

    @property
    def steps(self) -> int:
        """One."""
        return 1

    def step(self, index: int) -> Transfers:  # noqa: ARG002  (there is one step)
        """No messages."""
        return Transfers.empty()

    def sends(self, rank: int) -> Transfers:  # noqa: ARG002  (no rank has any)
        """No messages."""
        return Transfers.empty()

    def receives(self, rank: int) -> Transfers:  # noqa: ARG002  (no rank has any)
        """No messages."""
        return Transfers.empty()


@dataclass(frozen=True, eq=False)
class Plan:
    """A collective as a compact program.

    ``nbytes`` is the size as users count it: the buffer of an allreduce or broadcast, the input
    of a reduce-scatter or all-to-all, the *result* of an allgather (as nccl-tests counts).
    """

    name: str
    collective: Collective
    ranks: int
    nbytes: int
    unit_bytes: int
    """Bytes of an element on the wire (2 for fp16); no boundary falls within an element."""
    stages: tuple[Stage, ...]
    buffers: Mapping[Buffer, int]
    """Bytes that each rank needs of each buffer."""
    root: int = 0
    """The rank that a broadcast starts from."""
    bits: int = 0
    """Bits of an encoded value, where there are any."""
    blocks: Blocks | None = None
    """Of an alltoallv or a combine."""
    _ends: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Leave out the stages that have nothing to do."""
        has_any = self.nbytes and (self.ranks > 1 or self.blocks is not None)
        stages = tuple(s for s in self.stages if s.steps) if has_any else ()
        object.__setattr__(self, "stages", stages)
        object.__setattr__(self, "_ends", tuple(accumulate(s.steps for s in stages)))

    @property
    def steps(self) -> int:
        """Number of steps; some may be local work only. 0 for one rank or no bytes."""
        return self._ends[-1] if self._ends else 0

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        return (0, *self._ends[:-1])

    def step(self, step: int) -> Transfers:
        """All messages of one step as arrays.

        Raises:
            IndexError: the plan has no such step.

        """
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} of a plan of {self.steps} steps")
        at = bisect_right(self._ends, step)
        start = self._starts[at]
        return self.stages[at].step(step - start).later(start)

    def local_work(self, rank: int) -> Iterator[LocalWork]:
        """All that ``rank`` does by itself, in the order of steps."""
        for start, stage in zip(self._starts, self.stages, strict=False):
            for work in stage.local_work(rank):
                yield work._replace(step=work.step + start)

    def rank_steps(self, rank: int) -> Iterator[RankStep]:
        """Generate the program of one rank: each step in which it has something to do, in order.

        Takes time in the number of its own messages; stages are expanded one at a time.

        Raises:
            IndexError: the plan has no such rank.

        """
        if not 0 <= rank < self.ranks:
            raise IndexError(f"rank {rank} of a plan of {self.ranks} ranks")
        for start, stage in zip(self._starts, self.stages, strict=False):
            local = _by_step(w._replace(step=w.step + start) for w in stage.local_work(rank))
            sends = _by_step(stage.sends(rank).later(start).messages())
            receives = _by_step(stage.receives(rank).later(start).messages())
            waits = True
            for step in sorted(local.keys() | sends.keys() | receives.keys()):
                yield RankStep(step, tuple(local.get(step, ())), tuple(sends.get(step, ())),
                               tuple(receives.get(step, ())), waits)
                waits = not stage.pipelined

    def phases(self) -> Iterator[Phase]:
        """Give the plan as phases, one after the other; runs over the same edges are joined."""
        last: Phase | None = None
        for stage in self.stages:
            for phase in stage.phases():
                if last is not None and last.continues(phase):
                    last = last.joined(phase)
                    continue
                if last is not None:
                    yield last
                last = phase
        if last is not None:
            yield last


def _by_step(rows: Iterable[_Row]) -> dict[int, list[_Row]]:
    steps: dict[int, list[_Row]] = defaultdict(list)
    for row in rows:
        steps[row.step].append(row)
    return steps
