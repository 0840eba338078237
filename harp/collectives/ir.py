"""The intermediate representation of collectives: messages, a rank's steps, phases.

Semantics
---------
A plan is a sequence of numbered *steps* over named byte buffers that every rank has
(:class:`Buffer`). In step ``s`` a rank

1. does its local work of step ``s`` (:class:`LocalWork`: copies, top-k selection, scatter-add);
2. sends from its buffers as they stand then, and receives into them.

A rank begins step ``s + 1`` when its own sends and receives of step ``s`` have completed. Ranks are
otherwise asynchronous: there is no barrier. Messages are matched by (source, destination, step),
and rows that agree in all three are the pieces of one message (a gather list). Messages of no bytes
do not exist. Within a step, no byte that is being sent is written, and none is written twice, save
that several messages may be added to it (a receiver adds them in the order of its rows, for equal
sums on every run). So no copy is needed, and the order of arrival does not matter;
:func:`harp.collectives.check.check` proves it.

Three views of the same plan
----------------------------
- :class:`Transfers`: all messages of one step as arrays, one row a message;
- :class:`RankStep`: what one rank does in one step; this is what a real collective executes;
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
    """Where an all-to-all leaves its result."""
    STAGE = 2
    """Blocks on their way through a hierarchical all-to-all."""
    PAIRS = 3
    """Slots of (value, index) pairs, one slot for each rank that takes part."""


class Op(IntEnum):
    """What becomes of the bytes at their destination."""

    COPY = 0
    """They replace what was there."""
    REDUCE = 1
    """They are added, element by element, to what was there."""
    SELECT = 2
    """Local: the largest elements of the source range are written as pairs."""
    SCATTER_ADD = 3
    """Local: the target becomes zero, then the pairs of every slot are added to it."""


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
    """What a rank does by itself at the beginning of a step. Offsets and lengths in bytes."""

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
    """How many equal slots the pairs' side has (1 where it is a plain range)."""


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


@dataclass(frozen=True)
class Pipeline:
    """How chunks flow through a phase whose edges all stream at once (the two trees).

    With alpha the latency of a message, B the rate of a port and F the fluid time of the whole
    phase (all edges active, each moving its ``bytes_per_edge``), the phase lasts

        hops · (alpha + fan · chunk_bytes / B) + (chunks - 1) · alpha + F · (chunks - 1) / chunks

    The first term is the way of the first chunk: ``hops`` edges one after the other, on each of
    which ``fan`` siblings share a port. The others follow it at the steady pace.
    """

    hops: int
    chunks: int
    chunk_bytes: int
    """Size of the largest chunk."""
    fan: int


@dataclass(frozen=True, eq=False)
class LocalCost:
    """Local work of a phase: ``elements[rank]`` elements are examined (SELECT) or added."""

    op: Op
    elements: Ints


@dataclass(frozen=True, eq=False)
class Phase:
    """A run of consecutive steps over the same edges, for a fluid simulator.

    Phases of a plan follow one another. ``src``, ``dst`` and ``bytes_per_edge`` have one row a
    stream (a pair of ranks that both trees use appears twice); ``bytes_per_edge`` is the total over
    the phase. A phase of local work has no edges. Plain copies within a rank are in no phase.
    """

    label: str
    src: Ranks
    dst: Ranks
    bytes_per_edge: Ints
    steps: int
    """Messages in sequence on each edge: the phase pays that many latencies and message costs."""
    coupled: bool
    """Edges of one ``group`` move in lock step, at the pace of the slowest; else independent."""
    group: Ranks
    """For each edge the number of the ring (or other set of coupled edges) that it belongs to."""
    pipeline: Pipeline | None = None
    local: LocalCost | None = None

    def continues(self, other: Phase) -> bool:
        """Whether ``other`` goes on over the same coupled edges, so that the two are one phase."""
        plain = all(p.coupled and p.pipeline is None and p.local is None for p in (self, other))
        return (plain and np.array_equal(self.src, other.src)
                and np.array_equal(self.dst, other.dst)
                and np.array_equal(self.group, other.group))

    def joined(self, other: Phase) -> Phase:
        """Join the phase and its continuation."""
        return Phase(f"{self.label} + {other.label}", self.src, self.dst,
                     self.bytes_per_edge + other.bytes_per_edge, self.steps + other.steps,
                     self.coupled, self.group)


def local_phase(label: str, op: Op, elements: Ints) -> Phase:
    """Make a phase in which every rank works alone; ``elements`` has one entry a rank."""
    none = np.empty(0, np.int32)
    return Phase(label, none, none, np.empty(0, np.int64), 0, False, none,
                 local=LocalCost(op, elements))
