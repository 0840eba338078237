"""A rank's mover (`cnet/lightcc/mover.h`) over the connections to its peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harp._cnet import ffi, lib
from harp.lightcc.peers import GroupError
from harp.lightcc.pieces import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from harp.net import Connection, Engine

SLOTS = 16
"""Pieces that may be under way to be reduced: what 100 Gb/s bring in 0.3 ms."""
EXPECT_BYTES: int = lib.HARP_EXPECT_BYTES


class LateError(Exception):
    """It was not over in the time given."""


class CancelledError(Exception):
    """Another thread ended it."""


class DiffersError(Exception):
    """A peer sent other bytes than were expected."""

    def __init__(self, peer: int, heard: bytes) -> None:
        super().__init__(peer, heard)
        self.peer, self.heard = peer, heard


class Mover:
    """Moves pieces over ``connections``, which are its alone from now on. One thread at a time."""

    def __init__(self, engines: Sequence[Engine], connections: Mapping[int, Connection],
                 ranks: int) -> None:
        self._connections = connections
        given = ffi.new("struct harp_connection *[]", ranks)
        for peer, connection in connections.items():
            given[peer] = connection.c_connection
        driven = ffi.new("struct harp_engine *[]", [engine.c_engine for engine in engines])
        config = ffi.new("struct harp_mover_config *", {
            "engines": driven, "engines_n": len(engines), "connections": given, "peers": ranks,
            "slot_bytes": PIECE_BYTES, "slots": SLOTS})
        made = lib.harp_mover_new(config)
        if made == ffi.NULL:
            raise MemoryError("no memory to move a collective's pieces")
        self._mover = ffi.gc(made, lib.harp_mover_free)
        self._moved = ffi.new("struct harp_moved *")

    def run(self, pieces: NDArray[np.void], work: Any, timeout_s: float) -> None:
        """Move pieces (of type `harp.lightcc.pieces.PIECE`), with a ``struct harp_piece_work *``.

        Raises `GroupError` for a peer that is gone, and the errors above.
        """
        rows = ffi.from_buffer("struct harp_piece[]", pieces)
        self._check(lib.harp_mover_run(self._mover, rows, len(pieces), work,
                                       int(timeout_s * 1e9), self._moved))

    def flush(self, timeout_s: float) -> None:
        """Wait until the peers have all that was sent, as far as they are there."""
        lib.harp_mover_flush(self._mover, int(timeout_s * 1e9))

    def cancel(self) -> None:
        """End the run that is under way, and all later ones. Any thread."""
        lib.harp_mover_cancel(self._mover)

    def _check(self, end: int) -> None:
        moved = self._moved
        if end == lib.HARP_MOVE_LATE:
            raise LateError
        if end == lib.HARP_MOVE_CANCELLED:
            raise CancelledError
        if end == lib.HARP_MOVE_GONE:
            raise GroupError(f"rank {moved.peer} is gone: {self._connections[moved.peer].why()}")
        if end == lib.HARP_MOVE_DIFFERS:
            raise DiffersError(moved.peer, bytes(ffi.buffer(moved.heard, moved.heard_bytes)))
        if end == lib.HARP_MOVE_SIZE:
            raise GroupError(f"rank {moved.peer} sent a piece of {moved.came} B where {moved.due} "
                             "B were to come: the ranks do not run the same plan")
