"""The pieces of a rank's part in a collective, which `cnet/lightcc/mover.h` moves.

A plan's messages are cut into pieces of `PIECE_BYTES`, which stay in a core's cache while they are
reduced. Both ends cut alike, so all ranks must use the same size. The list of a plan is made once
and kept; for a call only the addresses of its memory are filled in.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harp._cnet import lib
from harp.collectives.ir import Buffer, Op
from harp.collectives.registry import make_plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from harp.collectives.collective_plan import Plan

    Bytes = NDArray[np.uint8]

PIECE_BYTES = 256 << 10
"""A few pieces fit a second-level cache of 1 MiB or more."""

PIECE = np.dtype([("at", "u8"), ("from", "u8"), ("bytes", "u4"), ("from_bytes", "u4"),
                  ("kind", "u2"), ("peer", "u2"), ("inline_descriptor", "u4")], align=True)
"""struct harp_piece."""

SEND: int = lib.HARP_PIECE_SEND
PLACE: int = lib.HARP_PIECE_PLACE
REDUCE: int = lib.HARP_PIECE_REDUCE
FENCE: int = lib.HARP_PIECE_FENCE
_RECEIVE = {Op.COPY: PLACE, Op.REDUCE: REDUCE}

_ALONE = {Op.SELECT: lib.HARP_PIECE_SELECT, Op.SCATTER_ADD: lib.HARP_PIECE_ADD}

Row = tuple[int, int, int, int, int, int, int]
"""A piece: at, from, bytes, from_bytes, kind, peer, inline_descriptor."""


class PlanPieces(NamedTuple):
    """A rank's pieces of a plan, for memory that is not known yet."""

    rows: NDArray[np.void]
    """Of type `PIECE`, with offsets for addresses: into DATA, and behind its end into PAIRS."""
    data_bytes: int
    pairs_bytes: int

    @property
    def error_bytes(self) -> int:
        """Bytes of what is not sent: of those among which the rank selects; 0 where it does not."""
        return int(self._selects["from_bytes"].sum())

    @property
    def error_offset(self) -> int:
        """Offsets of those."""
        return int(self._selects["from"][0]) if len(self._selects) else 0

    @property
    def _selects(self) -> NDArray[np.void]:
        selects: NDArray[np.void] = self.rows[self.rows["kind"] == _ALONE[Op.SELECT]]
        return selects

    @property
    def examined(self) -> slice:
        """The bytes of the data among which the rank selects."""
        selects = self.rows[self.rows["kind"] == _ALONE[Op.SELECT]]
        start = int(selects["from"].min()) if len(selects) else 0
        return slice(start, start + self.error_bytes)

    def among(self, ranks: Sequence[int]) -> PlanPieces:
        """Return the pieces of a plan whose ranks are these ranks of a larger group."""
        rows = self.rows.copy()
        rows["peer"] = np.array(ranks, np.uint16)[rows["peer"]]
        return self._replace(rows=rows)

    def on(self, data: Bytes, pairs: Bytes) -> NDArray[np.void]:
        """Make addresses of the offsets."""
        rows = self.rows.copy()
        if not self.pairs_bytes:
            for field in ("at", "from"):
                rows[field] += np.uint64(address(data))
            return rows
        for field in ("at", "from"):
            in_pairs = rows[field] >= self.data_bytes
            rows[field] += np.where(in_pairs, address(pairs) - self.data_bytes,
                                    address(data)).astype(np.uint64)
        return rows


def address(data: Bytes) -> int:
    """Return the address of memory."""
    return int(data.__array_interface__["data"][0])


def table(rows: Sequence[Row]) -> NDArray[np.void]:
    """Make an array of pieces."""
    return np.array(rows, PIECE)


def fence() -> Row:
    """Return the piece that waits for all before it."""
    return 0, 0, 0, 0, FENCE, 0, 0


def cut(kind: int, peer: int, data: Bytes) -> Iterator[Row]:
    """Cut a message to or from a peer into pieces."""
    yield from _cut_range(kind, peer, address(data), len(data), PIECE_BYTES)


def _cut_range(kind: int, peer: int, start: int, length: int, piece_bytes: int) -> Iterator[Row]:
    for offset in range(0, length, piece_bytes):
        yield start + offset, 0, min(piece_bytes, length - offset), 0, kind, peer, 0


def in_turn(sends: Sequence[Iterator[Row]], receives: Sequence[Iterator[Row]]) -> Iterator[Row]:
    """Interleave messages that are sent and received at once: a piece of each, then the next.

    The mover opens some hundreds of pieces in this order. Were all that is sent first, two ranks
    that send each other more than that would both wait for the other to receive. A step of a plan
    receives only where it sends nothing from, or exactly there: there the piece that is sent is
    before the one that replaces it.
    """
    at_once = [message for pair in zip_longest(sends, receives) for message in pair if message]
    for pieces in zip_longest(*at_once):
        yield from (piece for piece in pieces if piece)


@lru_cache(maxsize=256)
def plan_pieces(name: str, ranks: int, rank: int, nbytes: int, unit_bytes: int,
                **parameters: Any) -> PlanPieces:
    """Give a rank's pieces of the plan called ``name``."""
    plan = make_plan(name, ranks=ranks, nbytes=nbytes, unit_bytes=unit_bytes, **parameters)
    return pieces_of(plan, rank)


def pieces_of(plan: Plan, rank: int) -> PlanPieces:
    """Give a rank's pieces of a plan, as `harp.collectives.execute` would move them."""
    if set(plan.buffers) - {Buffer.DATA, Buffer.PAIRS}:
        raise ValueError("the plan needs memory that collectives on the host do not have")
    first = {Buffer.DATA: 0, Buffer.PAIRS: plan.buffers[Buffer.DATA]}
    rows = table(list(_plan_rows(plan, rank, first)))
    return PlanPieces(rows, plan.buffers[Buffer.DATA], plan.buffers.get(Buffer.PAIRS, 0))


def rows_on(plan: Plan, rank: int, at: Mapping[Buffer, int]) -> NDArray[np.void]:
    """Give a rank's pieces of a plan on buffers at these addresses, less the copies of its own."""
    return table(list(_plan_rows(plan, rank, at)))


def _plan_rows(plan: Plan, rank: int, first: Mapping[Buffer, int]) -> Iterator[Row]:
    piece_bytes = PIECE_BYTES // plan.unit_bytes * plan.unit_bytes
    for step in plan.rank_steps(rank):
        if step.waits:
            yield fence()
        for work in step.local:
            if work.op == Op.COPY:
                continue
            yield (first[Buffer(work.dst_buffer)] + work.dst_offset,
                   first[Buffer(work.src_buffer)] + work.src_offset,
                   work.dst_length, work.src_length, _ALONE[Op(work.op)], 0, 0)
        sends = [_cut_range(SEND, message.dst,
                            first[Buffer(message.src_buffer)] + message.src_offset,
                            message.length, piece_bytes) for message in step.sends]
        receives = [_cut_range(_RECEIVE[Op(message.op)], message.src,
                               first[Buffer(message.dst_buffer)] + message.dst_offset,
                               message.length, piece_bytes) for message in step.receives]
        yield from in_turn(sends, receives)
