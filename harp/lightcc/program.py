"""A collective on given memory, ready to run: once, or in every step of a training.

Ranks agree on their call before anything is received: each sends a descriptor of its call, a number
and words, to its partners of `harp.collectives.doubling`, and expects the same from them. Partners
link all ranks and are the same in every call, so two ranks that call different things are found
wherever they are. Messages of a small allreduce or broadcast, which go between partners, carry the
descriptor inline; other programs begin with it. A program holds addresses only; the caller keeps
the memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from harp._cnet import ffi
from harp.collectives.doubling import find_partners
from harp.lightcc.mover import DESCRIPTOR_BYTES
from harp.lightcc.pieces import FENCE, PLACE, SEND, address, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

_NUMBER_BYTES = 8
_LINE_BYTES = 64
"""A cache line: the bytes behind a descriptor are aligned."""


class Program:
    """A rank's part of a collective.

    Args:
        what: the call in words, on which ranks must agree.
        pieces: of type `harp.lightcc.pieces.PIECE`.
        rank: the rank that runs it, of ``ranks``.
        work: a ``struct harp_piece_work *``, where there is something to reduce or select.
        finish: is called when the pieces are there.
        own: memory that the pieces point to and that only the program keeps.
        same_sizes: whether ranks that agree have pieces of the same sizes.
        inline_descriptor: whether the pieces carry the descriptor; there is one to and one from
            each partner then.
        data: all the memory that it works on, if known: programs on other memory may run beside it.
        prepare: is called when it begins, and may give other pieces.

    """

    def __init__(self, what: str, pieces: NDArray[np.void], rank: int, ranks: int,
                 work: Any = None, finish: Callable[[], None] | None = None,
                 own: Any = None, *, same_sizes: bool = True, inline_descriptor: bool = False,
                 data: Bytes | Sequence[Bytes] | None = None,
                 prepare: Callable[[], NDArray[np.void] | None] | None = None) -> None:
        self.what, self.finish, self._own, self._prepare = what, finish, own, prepare
        self._rank, self._ranks = rank, ranks
        memory = [data] if isinstance(data, np.ndarray) else data
        self._places = None if memory is None else [(address(one), address(one) + len(one))
                                                    for one in memory]
        self.same_sizes = same_sizes
        self._descriptor = _make_descriptor(what)
        self.work = work or ffi.new("struct harp_piece_work *")
        self.work.said = self._descriptor_at = ffi.from_buffer("uint8_t[]", self._descriptor)
        self.work.said_bytes = len(self._descriptor)
        self.number = ffi.cast("uint64_t *", self._descriptor_at)
        """The number of the call of the group that it is run as."""
        if inline_descriptor and len(pieces):
            pieces = pieces[pieces["kind"] != FENCE]  # what a piece needs it waits for anyway
            pieces["inline_descriptor"] = 1
            self._take(pieces)
        else:
            self._describe(pieces)

    def _describe(self, pieces: NDArray[np.void]) -> None:
        """Take pieces, after those that carry the descriptor."""
        descriptors = [(0, 0, 0, 0, kind, peer, 1) for kind in (SEND, PLACE)
                       for peer in find_partners(self._rank, self._ranks)]
        self._take(np.concatenate([table(descriptors), pieces]))

    def _take(self, pieces: NDArray[np.void]) -> None:
        self.pieces_n = len(pieces)
        self.pieces = ffi.from_buffer("struct harp_piece[]", pieces)

    def begin(self) -> None:
        """Prepare what is to be done when the call begins."""
        if self._prepare is not None:
            pieces = self._prepare()
            if pieces is not None:
                self._describe(pieces)

    def keep(self, own: Any) -> None:
        """Keep memory that the pieces point to."""
        self._own = own

    def is_apart(self, other: Program) -> bool:
        """Whether both may be run at once."""
        if self._places is None or other._places is None or self is other:
            return False
        return all(one[1] <= two[0] or two[1] <= one[0]
                   for one in self._places for two in other._places)


def small_broadcast(data: Bytes, rank: int, ranks: int, root: int) -> NDArray[np.void]:
    """Return a rank's pieces of a broadcast that is sent with the descriptors.

    Partners exchange messages as in recursive doubling, between ranks that differ in one bit. A
    message holds the data if its sender has it by then and its receiver has not.
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


def _make_descriptor(what: str) -> bytearray:
    """Encode the call after room for its number; zeros fill the last cache line."""
    words = what.encode()[:DESCRIPTOR_BYTES - _NUMBER_BYTES - 1]
    lines = (_NUMBER_BYTES + len(words)) // _LINE_BYTES + 1
    return bytearray(_NUMBER_BYTES) + words.ljust(lines * _LINE_BYTES - _NUMBER_BYTES, b"\0")


def read_descriptor(descriptor: bytes) -> str:
    """Return what another rank calls."""
    return descriptor[_NUMBER_BYTES:].split(b"\0")[0].decode(errors="replace")
