"""What a rank does in a collective, as the list of pieces that `cnet/lightcc/mover.h` moves.

A plan's messages are cut into pieces of `PIECE_BYTES`, which stay in a core's cache while they are
reduced. Both ends cut alike, so all ranks must use the same size. The list of a plan is made once
and kept; for a call only the addresses of its memory are filled in.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from harp._cnet import lib
from harp.collectives.ir import Buffer, Op
from harp.collectives.registry import make_plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from harp.collectives.ir import LocalWork
    from harp.collectives.plan import Plan

    Bytes = NDArray[np.uint8]

PIECE_BYTES = 256 << 10
"""Of a second-level cache of 1 MiB or more, a few pieces."""

PIECE = np.dtype([("at", "u8"), ("from", "u8"), ("bytes", "u4"), ("kind", "u2"), ("peer", "u2")])
"""struct harp_piece."""

SEND: int = lib.HARP_PIECE_SEND
PLACE: int = lib.HARP_PIECE_PLACE
EXPECT: int = lib.HARP_PIECE_EXPECT
_SETTLE: int = lib.HARP_PIECE_SETTLE
_RECEIVE = {Op.COPY: PLACE, Op.REDUCE: lib.HARP_PIECE_REDUCE}

Row = tuple[int, int, int, int, int]
"""A piece: at, from, bytes, kind, peer."""


def on_memory(rows: NDArray[np.void], data: Bytes) -> NDArray[np.void]:
    """Make addresses of the offsets that `plan_pieces` gives."""
    placed = rows.copy()
    placed["at"] += np.uint64(address(data))
    placed["from"] += np.uint64(address(data))
    return placed


def address(data: Bytes) -> int:
    """Where memory lies."""
    return int(data.__array_interface__["data"][0])


def table(rows: Sequence[Row]) -> NDArray[np.void]:
    """Make an array of pieces."""
    return np.array(rows, PIECE)


def settle() -> Row:
    """Give the piece that waits for all before it."""
    return 0, 0, 0, _SETTLE, 0


def cut(kind: int, peer: int, data: Bytes) -> Iterator[Row]:
    """Cut what goes to or comes from a peer into pieces."""
    start = address(data)
    for offset in range(0, len(data), PIECE_BYTES):
        yield start + offset, 0, min(PIECE_BYTES, len(data) - offset), kind, peer


@lru_cache(maxsize=256)
def plan_pieces(name: str, ranks: int, rank: int, nbytes: int, unit_bytes: int,
                **parameters: int) -> NDArray[np.void]:
    """Give a rank's pieces of the plan called ``name`` on its buffer DATA, as offsets."""
    plan = make_plan(name, ranks=ranks, nbytes=nbytes, unit_bytes=unit_bytes, **parameters)
    if set(plan.buffers) - {Buffer.DATA}:
        raise ValueError(f"plan {name} needs more memory than the tensor's own")
    piece_bytes = PIECE_BYTES // unit_bytes * unit_bytes
    rows = table(list(_rows(plan, rank, piece_bytes)))
    rows.setflags(write=False)
    return rows


def _rows(plan: Plan, rank: int, piece_bytes: int) -> Iterator[Row]:
    for step in plan.rank_steps(rank):
        if step.waits:
            yield settle()
        for work in step.local:
            yield from _local(work, piece_bytes)
        for message in step.sends:
            for offset, size in _parts(message.length, piece_bytes):
                yield message.src_offset + offset, 0, size, SEND, message.dst
        for message in step.receives:
            for offset, size in _parts(message.length, piece_bytes):
                yield (message.dst_offset + offset, 0, size, _RECEIVE[Op(message.op)], message.src)


def _local(work: LocalWork, piece_bytes: int) -> Iterator[Row]:
    if work.op != Op.COPY:
        raise ValueError(f"{Op(work.op).name} is not done on the host yet")
    for offset, size in _parts(work.dst_length, piece_bytes):
        yield (work.dst_offset + offset, work.src_offset + offset, size, lib.HARP_PIECE_COPY, 0)


def _parts(length: int, piece_bytes: int) -> Iterator[tuple[int, int]]:
    for offset in range(0, length, piece_bytes):
        yield offset, min(piece_bytes, length - offset)
