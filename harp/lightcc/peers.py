"""The connections of a group of ranks: two to each other rank, made when the group is made.

Ranks tell each other where they listen by a store, which knows ``set(key, bytes)`` and
``get(key) -> bytes``; get waits until somebody has set the key. torch's stores are such. Ranks of
one host and its network talk over memory (``mem``), others over UDP sockets (``udp``); HARP_PORT
names one for all. The own address is that of HARP_IFNAME, else the one from which the network leads
to MASTER_ADDR.

One connection of a pair carries the pieces of collectives, the other one what may come at any time:
messages between two ranks, and news that the group has failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harp.collectives.channels import ConnectionChannel
from harp.net import Engine, Port
from harp.net.errors import EndedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from harp.net import Connection, Listener

    Bytes = NDArray[np.uint8]

PIECES, LETTERS = b"pieces", b"letters"
CHOICE_BYTES = 16
MESH_CONNECTIONS = 2
PORTS = ("auto", "udp", "mem")


class GroupError(RuntimeError):
    """The group has failed; the same sentence at every rank that could be told."""


class PeerChannel(ConnectionChannel):
    """A channel whose errors name the peer."""

    def __init__(self, peer: int, connection: Connection) -> None:
        super().__init__(connection)
        self._peer = peer

    async def send(self, piece: Bytes) -> None:
        """Take a piece."""
        try:
            await super().send(piece)
        except EndedError as error:
            raise self._gone(error) from error

    async def take(self) -> Bytes:
        """Give the next piece."""
        try:
            return await super().take()
        except EndedError as error:
            raise self._gone(error) from error

    def _gone(self, error: EndedError) -> GroupError:
        return GroupError(f"rank {self._peer} is gone: {error}")


class Store(Protocol):
    """What ranks find each other by."""

    def set(self, key: str, value: bytes) -> object:
        """Tell all ranks."""

    def get(self, key: str) -> bytes:
        """Wait until it is told."""


class Peers:
    """Engines and connections of one rank of one group."""

    def __init__(self, rank: int, ranks: int, store: Store, timeout_s: float,
                 environment: Mapping[str, str] = os.environ) -> None:
        self.rank, self.ranks = rank, ranks
        self._store, self._timeout_s = store, timeout_s
        self._engines: dict[str, Engine] = {}
        self._port = environment.get("HARP_PORT", "auto")
        if self._port not in PORTS:
            raise ValueError(f"HARP_PORT is {self._port!r}; collectives on the host have "
                             f"{', '.join(PORTS)}")
        self._environment = environment
        self.pieces: dict[int, Connection] = {}
        """For collectives (`harp.lightcc.mover`)."""
        self.letters: dict[int, PeerChannel] = {}
        """For messages between two ranks, and for failures."""

    async def connect(self) -> None:
        """Open all connections. Raises what the network raises, or TimeoutError."""
        await asyncio.wait_for(self._connect(), self._timeout_s)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        self._store.set(f"place/{self.rank}", _place().encode())
        places = [(await loop.run_in_executor(None, self._store.get, f"place/{rank}")).decode()
                  for rank in range(self.ranks)]
        here = places[self.rank]
        kinds = {peer: self._kind(place == here) for peer, place in enumerate(places)
                 if peer != self.rank}
        listeners = {peer: self._engine(kind).listen(dead_after=self._dead_s)
                     for peer, kind in kinds.items() if peer > self.rank}
        self._store.set(f"handles/{self.rank}", json.dumps(
            {peer: listener.handle.to_bytes().hex() for peer, listener in listeners.items()}
        ).encode())
        try:
            await asyncio.gather(
                *(self._accept(peer, listener) for peer, listener in listeners.items()),
                *(self._reach(peer, kind) for peer, kind in kinds.items() if peer < self.rank))
        finally:
            for listener in listeners.values():
                listener.close()

    @property
    def _dead_s(self) -> float:
        return max(1.0, min(self._timeout_s, 30.0))

    def _kind(self, same_host: bool) -> str:
        if self._port == "auto":
            return "mem" if same_host else "udp"
        if self._port == "mem" and not same_host:
            raise ValueError("HARP_PORT is mem, but the ranks are on several hosts; auto takes mem "
                             "within a host and udp between them")
        return self._port

    def _engine(self, kind: str) -> Engine:
        if kind not in self._engines:
            port = Port("mem") if kind == "mem" else udp_port(self._environment)
            self._engines[kind] = Engine(port, name=f"lightcc {self.rank} {kind}",
                                         progress="inline")
        return self._engines[kind]

    async def _accept(self, peer: int, listener: Listener) -> None:
        for _ in range(MESH_CONNECTIONS):
            connection = await listener.accept_async()
            self._keep(peer, connection, bytes(await connection.recv_async(CHOICE_BYTES)))

    async def _reach(self, peer: int, kind: str) -> None:
        loop = asyncio.get_running_loop()
        said = json.loads(await loop.run_in_executor(None, self._store.get, f"handles/{peer}"))
        handle = bytes.fromhex(said[str(self.rank)])
        for which in (PIECES, LETTERS):
            connection = await self._engine(kind).connect_async(handle, dead_after=self._dead_s)
            await connection.send_async(which)
            self._keep(peer, connection, which)

    def _keep(self, peer: int, connection: Connection, which: bytes) -> None:
        if which == PIECES:
            self.pieces[peer] = connection
        else:
            self.letters[peer] = PeerChannel(peer, connection)

    @property
    def engines(self) -> list[Engine]:
        """Those that carry the connections; whoever waits for pieces drives them."""
        return list(self._engines.values())

    def end_pieces(self) -> None:
        """End the collectives' connections: from then on nobody uses a call's memory."""
        for connection in self.pieces.values():
            connection.close()

    async def flush(self, timeout_s: float) -> None:
        """Wait until others have the letters to them, for a while, as far as they are there."""
        for channel in self.letters.values():
            with contextlib.suppress(EndedError, asyncio.TimeoutError):
                await asyncio.wait_for(channel.flush(), timeout_s)

    def close(self) -> None:
        """End all connections."""
        self.pieces.clear()
        self.letters.clear()
        for engine in self._engines.values():
            engine.close()
        self._engines.clear()


def udp_port(environment: Mapping[str, str]) -> Port:
    """Give the port of the interface by which this host reaches the others."""
    interface = environment.get("HARP_IFNAME")
    if interface:
        return Port("udp", interface)
    master = environment.get("MASTER_ADDR", "127.0.0.1")
    family, kind, protocol, _, where = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as asking:
        asking.connect(where)  # sends nothing; the kernel chooses the route
        return Port("udp", address=str(asking.getsockname()[0]))


def _place() -> str:
    """Where memory can be shared: this boot of this host, and its network and process spaces."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = [Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in ("net", "pid")]
    return json.dumps([boot, *spaces, Path("/dev/shm").stat().st_dev])
