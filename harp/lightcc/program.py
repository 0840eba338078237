"""A collective on given memory, made ready to be run: once, or in every step of a training.

Ranks agree on what they call before anything is received: each describes its call, by number and
words, to its partners of `harp.collectives.doubling`, and expects the same of them. Partners link
all ranks and are the same ones in every call, so two that call different things are found wherever
they are. Messages of a small allreduce or broadcast, which go between partners, carry the
description; other programs begin with it. A program knows addresses only; whoever runs it keeps the
memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from harp._cnet import ffi
from harp.collectives.doubling import find_partners
from harp.lightcc.mover import SAID_BYTES
from harp.lightcc.pieces import FENCE, PLACE, SEND, address, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

_NUMBER_BYTES = 8
_LINE_BYTES = 64
"""Of a cache: what comes behind a description is aligned."""


class Program:
    """A rank's part of a collective.

    Args:
        what: what ranks must agree upon, for people.
        pieces: of type `harp.lightcc.pieces.PIECE`.
        rank: who runs it, of so many ``ranks``.
        work: a ``struct harp_piece_work *``, where there is something to reduce or select.
        finish: does what is left when the pieces are there.
        own: memory that the pieces point to and that nobody else keeps.
        same_sizes: whether ranks that agree have pieces of the same sizes.
        carried: whether the pieces are one to and one from each partner, and carry the description.
        data: the memory that it works on, if that is all: other programs may be run beside it whose
            memory is apart.

    """

    def __init__(self, what: str, pieces: NDArray[np.void], rank: int, ranks: int,
                 work: Any = None, finish: Callable[[], None] | None = None,
                 own: Any = None, *, same_sizes: bool = True, carried: bool = False,
                 data: Bytes | None = None) -> None:
        self.what, self.finish, self._own = what, finish, own
        self._place = None if data is None else (address(data), address(data) + len(data))
        self.same_sizes = same_sizes
        self._said = _describe(what)
        self.work = work or ffi.new("struct harp_piece_work *")
        self.work.said = self._said_at = ffi.from_buffer("uint8_t[]", self._said)
        self.work.said_bytes = len(self._said)
        self.number = ffi.cast("uint64_t *", self._said_at)
        """As which call of the group it is run."""
        if carried and len(pieces):
            pieces = pieces[pieces["kind"] != FENCE]  # what a piece needs it waits for anyway
            pieces["told"] = 1
        else:
            told = [(0, 0, 0, 0, kind, peer, 1) for kind in (SEND, PLACE)
                    for peer in find_partners(rank, ranks)]
            pieces = np.concatenate([table(told), pieces])
        self.pieces_n = len(pieces)
        self.pieces = ffi.from_buffer("struct harp_piece[]", pieces)


    def is_apart(self, other: Program) -> bool:
        """Whether both may be run at once."""
        if self._place is None or other._place is None or self is other:
            return False
        return self._place[1] <= other._place[0] or other._place[1] <= self._place[0]


def small_broadcast(data: Bytes, rank: int, ranks: int, root: int) -> NDArray[np.void]:
    """Give a rank's pieces of a broadcast that comes with the descriptions.

    Partners exchange messages as in recursive doubling, of which those hold the data whose sender
    has it by then and whose receiver has not: from each rank to the one that differs in one bit.
    """
    power = 1 << (ranks.bit_length() - 1)
    at, rows = address(data), []

    def message(kind: int, peer: int, *, is_full: bool) -> None:
        rows.append((at, 0, len(data) if is_full else 0, 0, kind, peer, 1))

    if rank >= power:
        message(SEND, rank - power, is_full=rank == root)
        message(PLACE, rank - power, is_full=rank != root)
        return table(rows)
    extra = rank + power if rank + power < ranks else None
    if extra is not None:
        message(PLACE, extra, is_full=extra == root)
    for step in range(power.bit_length() - 1):
        peer = rank ^ 1 << step
        message(SEND, peer, is_full=rank >> step == root % power >> step)
        message(PLACE, peer, is_full=peer >> step == root % power >> step)
    if extra is not None:
        message(SEND, extra, is_full=extra != root)
    return table(rows)


def _describe(what: str) -> bytearray:
    """Leave room for the number, and end by a zero or more."""
    words = what.encode()[:SAID_BYTES - _NUMBER_BYTES - 1]
    lines = (_NUMBER_BYTES + len(words)) // _LINE_BYTES + 1
    return bytearray(_NUMBER_BYTES) + words.ljust(lines * _LINE_BYTES - _NUMBER_BYTES, b"\0")


def heard_what(heard: bytes) -> str:
    """Give what another rank calls, of what it told."""
    return heard[_NUMBER_BYTES:].split(b"\0")[0].decode(errors="replace")
