"""The intermediate representation of collectives: messages, a rank's steps, phases.

Semantics
---------
A plan is a sequence of numbered *steps* over named byte buffers that every rank has
(:class:`Buffer`). In step ``s`` a rank

1. does its local work of step ``s`` (:class:`LocalWork`: copies, top-k selection, scatter-add,
   encoding in few bits);
2. sends from its buffers as they stand then, and receives into them.

There is no barrier. The stage decides the waits: in a pipeline (rings, trees) a send needs only the
receives that bring its bytes, and a free slot (`harp.collectives.window`); in every other stage a
rank begins step ``s + 1`` when its own sends and receives of step ``s`` have completed. In both
cases a rank does its steps in order. Messages are matched by (source, destination, step), and rows
that agree in all three are the pieces of one message (a gather list). Empty messages do not exist.
Within a step, no byte that is being sent is replaced, and none is replaced twice. Several messages
may be added to a byte, in the order of the receiver's rows, for equal sums on every run; or, in an
exchange, the partner's message after the old value has left. So the order of arrival does not
matter; :func:`harp.collectives.symbolic_check.check` proves it. A pipeline's early
messages wait in their slots.

Three views of the same plan
----------------------------
- :class:`Transfers`: all messages of one step as arrays, one row a message;
- :class:`RankStep`: what one rank does in one step; `harp.collectives.execute` runs it;
- :class:`Phase`: a run of steps over the same edges, for a fluid simulator.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]
    Ranks = NDArray[np.int32]
    Index = int | NDArray[np.integer[Any]]


class Buffer(IntEnum):
    """The buffers of a rank; a plan says how large each one is that it uses."""

    DATA = 0
    """The user's buffer; all but the all-to-alls leave their result here."""
    OUT = 1
    """The result of an all-to-all."""
    STAGE = 2
    """Intermediate blocks of a hierarchical all-to-all."""
    PAIRS = 3
    """Slots of (value, index) pairs, one slot for each rank that takes part."""
    CODES = 4
    """Messages of values in few bits."""


class Op(IntEnum):
    """The operation on the bytes at their destination."""

    COPY = 0
    """They replace what was there."""
    REDUCE = 1
    """They are added, element by element, to what was there."""
    SELECT = 2
    """Local: the largest elements of the source range are written as pairs."""
    SCATTER_ADD = 3
    """Local: the target becomes zero, then the pairs of every slot are added to it."""
    ENCODE = 4
    """Local: the source range is written as a message of values in few bits."""
    DECODE = 5
    """Local: the target becomes zero, then what the message of every slot says is added to it."""


class Message(NamedTuple):
    """One row of :class:`Transfers`. Offsets and length in bytes."""

    step: int
    src: int
    dst: int
    op: int
    src_buffer: int
    src_offset: int
    dst_buffer: int
    dst_offset: int
    length: int


class LocalWork(NamedTuple):
    """Local work of a rank at the beginning of a step. Offsets and lengths in bytes."""

    step: int
    rank: int
    op: int
    src_buffer: int
    src_offset: int
    src_length: int
    dst_buffer: int
    dst_offset: int
    dst_length: int
    slots: int
    """Number of equal slots on the pairs' side (1 for a plain range)."""


@dataclass(frozen=True, eq=False)
class Transfers:
    """Messages as a structure of arrays of equal length, one row a message. Offsets in bytes."""

    step: Ints
    src: Ranks
    dst: Ranks
    op: NDArray[np.int8]
    src_buffer: NDArray[np.int8]
    src_offset: Ints
    dst_buffer: NDArray[np.int8]
    dst_offset: Ints
    length: Ints

    @classmethod
    def build(
        cls, *, step: ArrayLike, src: ArrayLike, dst: ArrayLike, op: ArrayLike,
        src_offset: ArrayLike, length: ArrayLike, dst_offset: ArrayLike | None = None,
        src_buffer: ArrayLike = Buffer.DATA, dst_buffer: ArrayLike | None = None,
    ) -> Transfers:
        """Broadcast the columns against each other, flatten them, and drop rows of no bytes.

        ``dst_offset`` and ``dst_buffer`` are the source's unless given.
        """
        given = {
            "step": step, "src": src, "dst": dst, "op": op, "src_buffer": src_buffer,
            "src_offset": src_offset,
            "dst_buffer": src_buffer if dst_buffer is None else dst_buffer,
            "dst_offset": src_offset if dst_offset is None else dst_offset, "length": length,
        }
        columns = np.broadcast_arrays(*(np.asarray(given[name], _TYPES[name]) for name in _TYPES))
        rows = cls(*(column.ravel() for column in columns))
        return rows if rows.length.all() else rows.where(rows.length > 0)

    @classmethod
    def empty(cls) -> Transfers:
        """No rows."""
        return cls(*(np.empty(0, kind) for kind in _TYPES.values()))

    @classmethod
    def concat(cls, parts: list[Transfers]) -> Transfers:
        """Join the rows of all ``parts``."""
        if not parts:
            return cls.empty()
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in _TYPES))

    def __len__(self) -> int:
        return len(self.length)

    def where(self, index: Bools | Ints) -> Transfers:
        """Pick the rows that a mask or an array of row numbers names."""
        return Transfers(*(column[index] for column in self.columns()))

    def later(self, steps: int) -> Transfers:
        """Move the rows ``steps`` steps later."""
        return Transfers(self.step + steps, *self.columns()[1:])

    def columns(self) -> tuple[NDArray[Any], ...]:
        """Give the arrays, in the order of :class:`Message`'s fields."""
        return tuple(getattr(self, name) for name in _TYPES)

    def messages(self) -> Iterator[Message]:
        """Give the rows as plain integers."""
        return map(Message, *(column.tolist() for column in self.columns()))


_TYPES = dict(zip((f.name for f in fields(Transfers)),
                  (np.int64, np.int32, np.int32, np.int8, np.int8, np.int64, np.int8, np.int64,
                   np.int64), strict=True))


class RankStep(NamedTuple):
    """All that one rank does in one step: its local work first, then sends and receives at once."""

    step: int
    local: tuple[LocalWork, ...]
    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    waits: bool
    """Whether the rank must have done all before it: in a stage's first step, and in lock step."""


@dataclass(frozen=True, eq=False)
class Feeds:
    """The data dependences of a pipeline: edges of a phase that pass on what others bring.

    Row i says that edge ``target[i]`` sends what edge ``source[i]`` has delivered ``lag`` messages
    before: the next message of a ring (lag 1), the same chunk of a tree (lag 0).
    """

    source: Ints
    target: Ints
    lag: int
    level: Ints
    """Hops that the first message has made before each edge of the phase; 0 in a ring."""


@dataclass(frozen=True, eq=False)
class LocalCost:
    """Local work of a phase: ``elements[rank]`` are examined (SELECT), encoded or added."""

    op: Op
    elements: Ints


@dataclass(frozen=True, eq=False)
class Phase:
    """A run of consecutive steps over the same edges, for a simulator.

    Phases of a plan follow one another. ``src``, ``dst`` and ``bytes_per_edge`` have one row a
    stream (a pair of ranks that both trees use appears twice); ``bytes_per_edge`` is the total over
    the phase. A phase of local work has no edges. Plain copies within a rank are in no phase.

    Edges with ``feeds`` are a pipeline: what it names is all that a message waits for, beside its
    predecessors on the edge and a free slot (`harp.collectives.window`). Without, every edge has
    one message, and a rank goes on when all of its own are done.
    """

    label: str
    src: Ranks
    dst: Ranks
    bytes_per_edge: Ints
    steps: int
    """Messages in sequence on each edge."""
    group: Ranks
    """For each edge the number of the ring or tree that it belongs to; in the end all edges of one
    keep the pace of its slowest. A ring's edges stand in their order around it."""
    feeds: Feeds | None = None
    local: LocalCost | None = None

    @property
    def pipelined(self) -> bool:
        """Whether messages pass through ranks without waiting for the end of a step."""
        return self.feeds is not None

    @property
    def is_ring(self) -> bool:
        """Whether the edges of each group are a ring."""
        return self.feeds is not None and self.feeds.lag > 0

    def continues(self, other: Phase) -> bool:
        """Whether ``other`` goes on over the same rings, so that the two are one phase."""
        return (self.is_ring and other.is_ring and np.array_equal(self.src, other.src)
                and np.array_equal(self.dst, other.dst)
                and np.array_equal(self.group, other.group))

    def joined(self, other: Phase) -> Phase:
        """Join the phase and its continuation."""
        return Phase(f"{self.label} + {other.label}", self.src, self.dst,
                     self.bytes_per_edge + other.bytes_per_edge, self.steps + other.steps,
                     self.group, self.feeds)


def local_phase(label: str, op: Op, elements: Ints) -> Phase:
    """Make a phase in which every rank works alone; ``elements`` has one entry a rank."""
    none = np.empty(0, np.int32)
    return Phase(label, none, none, np.empty(0, np.int64), 0, none,
                 local=LocalCost(op, elements))
