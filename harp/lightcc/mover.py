"""The mover of a rank's pieces (`cnet/lightcc/mover.h`): over connections, or direct by memory."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from harp._cnet import ffi, lib
from harp.lightcc.failure import GroupError
from harp.lightcc.pieces import PIECE_BYTES
from harp.net.errors import OpenError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harp.lightcc.peers import Peers

log = logging.getLogger("harp.lightcc")

SLOTS = 16
"""Pieces that may be under way to be reduced: 0.3 ms at 100 Gb/s."""
SLICE_NS = 50_000_000
"""C returns to Python this often, so that signals are handled."""
DESCRIPTOR_BYTES: int = lib.HARP_SAID_BYTES
INLINE_DESCRIPTOR_BYTES: int = lib.HARP_INLINE_DESCRIPTOR_BYTES
RUNS: int = lib.HARP_MOVER_RUNS
"""Lists of pieces that may be under way at once."""
DONE: int = lib.HARP_MOVE_DONE
MORE: int = lib.HARP_MOVE_MORE


class LateError(Exception):
    """The call was not over in the given time."""


class CancelledError(Exception):
    """Another thread cancelled the call."""


class DiffersError(Exception):
    """A peer sent another descriptor than was expected."""

    def __init__(self, peer: int, descriptor: bytes) -> None:
        super().__init__(peer, descriptor)
        self.peer, self.descriptor = peer, descriptor


class SizeError(GroupError):
    """A peer sent more or fewer bytes than were expected."""


class Direct:
    """A rank's memory for pieces to the ranks of its host (`cnet/lightcc/direct.h`).

    Both ranks of a pair must have opened it. Where HARP_FAULTS makes the network lose datagrams, or
    HARP_PORT names another port, pieces take the network.
    """

    def __init__(self, ranks: int, environment: Mapping[str, str]) -> None:
        self._ranks = ranks
        self._on = not environment.get("HARP_FAULTS") and environment.get(
            "HARP_PORT", "auto") in {"auto", "mem"}
        self._c: Any = ffi.NULL
        self._names: dict[int, bytes] = {}

    def open(self) -> str:
        """Open it; returns the name for other ranks, or an empty one if it could not be opened."""
        if not self._on:
            return ""
        made, why = ffi.new("struct harp_direct **"), ffi.new("char[]", lib.HARP_WHY_BYTES)
        if lib.harp_direct_open(made, self._ranks, why) != 0:
            log.debug("all pieces take the network: %s", ffi.string(why).decode())
            return ""
        self._c = made[0]
        return bytes(ffi.buffer(lib.harp_direct_name(self._c), lib.HARP_DIRECT_NAME_BYTES)).hex()

    def meet(self, peer: int, name: str) -> None:
        """Take the name of another rank of this host."""
        if self._c != ffi.NULL and name:
            self._names[peer] = bytes.fromhex(name)

    def link(self, peer: int) -> None:
        """Connect to a rank of this host, if both have opened it. Raises OpenError."""
        name, why = self._names.get(peer), ffi.new("char[]", lib.HARP_WHY_BYTES)
        if name is None:
            return
        error = lib.harp_direct_link(self._c, peer, name, why)
        if error:
            raise OpenError.of(error, ffi.string(why).decode())

    @property
    def c_direct(self) -> Any:
        """The ``struct harp_direct *``, or NULL."""
        return self._c

    def close(self) -> None:
        """Release it."""
        lib.harp_direct_close(self._c)
        self._c = ffi.NULL


class Mover:
    """Moves a rank's pieces over ``peers.pieces``, which no other object uses.

    Between ranks of a host pieces go straight through memory (``peers.direct``). One thread at a
    time may call it, except where "any thread" is said.
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

        Raises `GroupError` for a peer that is gone, and the errors of this module.
        """
        self.add(pieces, pieces_n, work, timeout_ns)
        while not self.go_on():  # Python handles its signals in between
            pass

    def add(self, pieces: Any, pieces_n: int, work: Any, timeout_ns: int) -> None:
        """Add pieces that begin when all that were added before them have begun.

        All must stay until they are over. No more than `RUNS` may be under way.
        """
        if not lib.harp_mover_add(self._mover, pieces, pieces_n, work, timeout_ns):
            raise RuntimeError(f"{RUNS} runs of the mover are under way; that is the limit")

    def go_on(self) -> bool:
        """Move added pieces for a while; returns whether the first run is over. Raises as `run`."""
        end = lib.harp_mover_run(self._mover, SLICE_NS, self._moved)
        if end == DONE:
            return True
        if end != MORE:
            self._raise_end(end)
        return False

    def hurry(self) -> None:
        """Make `go_on` return. Any thread."""
        lib.harp_mover_hurry(self._mover)

    @property
    def failed(self) -> int:
        """The run that made `go_on` fail: its number among those not over, from 0."""
        which: int = self._moved.run
        return which

    def flush(self, timeout_s: float) -> None:
        """Wait until the peers that are there have all that was sent."""
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
            raise SizeError(f"rank {moved.peer} sent a piece of {moved.came} B, and {moved.due} B "
                             "were expected: the ranks do not run the same plan")
