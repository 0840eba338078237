"""A rank's mover (`cnet/lightcc/mover.h`) over the connections to its peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harp._cnet import ffi, lib
from harp.lightcc.failure import GroupError
from harp.lightcc.pieces import PIECE_BYTES

if TYPE_CHECKING:
    from harp.lightcc.peers import Peers

SLOTS = 16
"""Pieces that may be under way to be reduced: what 100 Gb/s bring in 0.3 ms."""
SLICE_NS = 50_000_000
"""How long C may keep a signal waiting."""
DESCRIPTOR_BYTES: int = lib.HARP_SAID_BYTES
INLINE_DESCRIPTOR_BYTES: int = lib.HARP_INLINE_DESCRIPTOR_BYTES
RUNS: int = lib.HARP_MOVER_RUNS
"""Lists of pieces that may be under way at once."""
DONE: int = lib.HARP_MOVE_DONE
MORE: int = lib.HARP_MOVE_MORE


class LateError(Exception):
    """It was not over in the time given."""


class CancelledError(Exception):
    """Another thread ended it."""


class DiffersError(Exception):
    """A peer sent other bytes than were expected."""

    def __init__(self, peer: int, descriptor: bytes) -> None:
        super().__init__(peer, descriptor)
        self.peer, self.descriptor = peer, descriptor


class SizeError(GroupError):
    """A peer sent more or less than was to come."""


class Mover:
    """Moves a rank's pieces over its ``peers.pieces``, which are its alone. One thread at a time.

    Between ranks of a host they go straight through memory (``peers.direct``).
    """

    def __init__(self, peers: Peers) -> None:
        self._connections = peers.pieces
        given = ffi.new("struct harp_connection *[]", peers.ranks)
        for peer, connection in peers.pieces.items():
            given[peer] = connection.c_connection
        driven = ffi.new("struct harp_engine *[]", [engine.c_engine for engine in peers.engines])
        config = ffi.new("struct harp_mover_config *", {
            "engines": driven, "engines_n": len(peers.engines), "connections": given,
            "direct": peers.direct.c_direct, "peers": peers.ranks, "rank": peers.rank,
            "slot_bytes": PIECE_BYTES, "slots": SLOTS})
        made = lib.harp_mover_new(config)
        if made == ffi.NULL:
            raise MemoryError("no memory to move a collective's pieces")
        self._mover = ffi.gc(made, lib.harp_mover_free)
        self._moved = ffi.new("struct harp_moved *")

    def run(self, pieces: Any, pieces_n: int, work: Any, timeout_ns: int) -> None:
        """Move pieces, a ``struct harp_piece[]``, with a ``struct harp_piece_work *``.

        Raises `GroupError` for a peer that is gone, and the errors above.
        """
        self.add(pieces, pieces_n, work, timeout_ns)
        while not self.go_on():  # Python looks after its signals in between
            pass

    def add(self, pieces: Any, pieces_n: int, work: Any, timeout_ns: int) -> None:
        """Add pieces that begin when all that were added before them have begun.

        All must stay until they are over. No more than `RUNS` may be under way.
        """
        if not lib.harp_mover_add(self._mover, pieces, pieces_n, work, timeout_ns):
            raise RuntimeError(f"{RUNS} runs of the mover are under way, the most")

    def go_on(self) -> bool:
        """Move what was added, for a while; says whether the first is over. Raises as `run`."""
        end = lib.harp_mover_run(self._mover, SLICE_NS, self._moved)
        if end == DONE:
            return True
        if end != MORE:
            self._raise_end(end)
        return False

    def hurry(self) -> None:
        """Have `go_on` come back. Any thread."""
        lib.harp_mover_hurry(self._mover)

    @property
    def failed(self) -> int:
        """Which of what was added and is not over `go_on` has failed by, from 0."""
        which: int = self._moved.run
        return which

    def flush(self, timeout_s: float) -> None:
        """Wait until the peers have all that was sent, as far as they are there."""
        lib.harp_mover_flush(self._mover, int(timeout_s * 1e9))

    def cancel(self) -> None:
        """End the run that is under way, and all later ones. Any thread."""
        lib.harp_mover_cancel(self._mover)

    def close_connections(self) -> None:
        """End the peers' connections: from then on nobody uses a call's memory."""
        for connection in self._connections.values():
            connection.close()

    def _raise_end(self, end: int) -> None:
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
            raise SizeError(f"rank {moved.peer} sent a piece of {moved.came} B where {moved.due} "
                             "B were to come: the ranks do not run the same plan")
