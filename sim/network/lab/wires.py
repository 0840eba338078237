"""Connections between hosts of the laboratory: kernel TCP, and HARP.

A wire goes one way, from one GPU to another on one channel. Pieces of a message are cut evenly over
the sockets of a TCP wire, as NCCL does; a HARP wire has as many paths instead.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING, Protocol

import numpy as np

from harp.collectives.channels import ConnectionChannel
from sim.network.lab.messages import FIRST_PORT, EdgeKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from harp.net.engine import Engine, Listener
    from sim.network.lab.messages import Setup

    Bytes = NDArray[np.uint8]

_HELLO = struct.Struct("!5I")


class Wire(Protocol):
    """One way between two GPUs."""

    async def send(self, piece: Bytes) -> None:
        """Send a piece; its bytes may change afterwards."""

    async def take(self) -> Bytes:
        """Give the next piece that came."""


class Wires(Protocol):
    """What makes the wires of one host."""

    async def open(self, key: EdgeKey) -> Wire:
        """Make the sender's end."""

    async def await_peer(self, key: EdgeKey) -> Wire:
        """Give the receiver's end, when the sender has made its own."""


class TcpWire:
    """Some sockets; which way is used is the owner's choice."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = sockets
        self._loop = asyncio.get_running_loop()

    async def send(self, piece: Bytes) -> None:
        """Send a piece, an even part of it on each socket."""
        cuts = [len(piece) * part // len(self._sockets) for part in range(len(self._sockets) + 1)]
        await asyncio.gather(*(
            self._send_part(sock, piece[first:last]) for sock, first, last
            in zip(self._sockets, cuts, cuts[1:], strict=False)))

    async def _send_part(self, sock: socket.socket, part: Bytes) -> None:
        await self._loop.sock_sendall(sock, struct.pack("!I", len(part)))
        await self._loop.sock_sendall(sock, part.data)

    async def take(self) -> Bytes:
        """Give the next piece that came."""
        parts = await asyncio.gather(*(self._take_part(sock) for sock in self._sockets))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    async def _take_part(self, sock: socket.socket) -> Bytes:
        head = await self._read(sock, 4)
        return await self._read(sock, struct.unpack("!I", head.tobytes())[0])

    async def _read(self, sock: socket.socket, nbytes: int) -> Bytes:
        into = np.empty(nbytes, np.uint8)
        got = 0
        while got < nbytes:
            count = await self._loop.sock_recv_into(sock, into[got:].data)
            if not count:
                raise EOFError("a peer closed its connection")
            got += count
        return into


class TcpWires:
    """TCP between the NICs of GPUs; every GPU listens at a port of its own."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._arrived: dict[EdgeKey, dict[int, socket.socket]] = {}
        self._complete: dict[EdgeKey, asyncio.Future[Wire]] = {}
        self.handles: dict[int, bytes] = {}
        self._accepting = [asyncio.ensure_future(self._accept(self._listen(gpu)))
                           for gpu in setup.own]

    async def open(self, key: EdgeKey) -> Wire:
        """Connect all sockets, one after the other."""
        loop, sockets = asyncio.get_running_loop(), []
        for index in range(self._setup.sockets):
            sock = _socket()
            sock.bind((self._setup.addresses[key.src], 0))
            await loop.sock_connect(sock, (self._setup.addresses[key.dst], FIRST_PORT + key.dst))
            await loop.sock_sendall(sock, _HELLO.pack(*key, index))
            sockets.append(sock)
        return TcpWire(sockets)

    async def await_peer(self, key: EdgeKey) -> Wire:
        """Wait until all sockets have come."""
        return await self._future(key)

    def _future(self, key: EdgeKey) -> asyncio.Future[Wire]:
        return self._complete.setdefault(key, asyncio.get_running_loop().create_future())

    def _listen(self, gpu: int) -> socket.socket:
        listening = _socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((self._setup.addresses[gpu], FIRST_PORT + gpu))
        listening.listen(1024)
        return listening

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(listening)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            *key, index = _HELLO.unpack((await TcpWire([sock])._read(sock, _HELLO.size)).tobytes())
            sockets = self._arrived.setdefault(EdgeKey(*key), {})
            sockets[index] = sock
            if len(sockets) == self._setup.sockets:
                self._future(EdgeKey(*key)).set_result(
                    TcpWire([sockets[number] for number in sorted(sockets)]))


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setblocking(False)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


class HarpWires:
    """HARP between the NICs of GPUs, with an engine for each GPU, as processes have."""

    def __init__(self, setup: Setup) -> None:
        from harp.net.engine import Engine

        self._setup = setup
        self._engines: dict[int, Engine] = {
            gpu: Engine("udp", address=setup.addresses[gpu], locals=min(setup.sockets, 8))
            for gpu in setup.own}
        self._listeners: dict[int, Listener] = {
            gpu: engine.listen(paths=setup.sockets) for gpu, engine in self._engines.items()}
        self.handles = {gpu: bytes(listener.handle) for gpu, listener in self._listeners.items()}
        self.peers: Callable[[], dict[int, bytes]] = dict
        self._complete: dict[EdgeKey, asyncio.Future[Wire]] = {}
        self._accepting = [asyncio.ensure_future(self._accept(listener))
                           for listener in self._listeners.values()]

    async def open(self, key: EdgeKey) -> Wire:
        """Connect, and say who we are."""
        connection = await self._engines[key.src].connect_async(
            self.peers()[key.dst], paths=self._setup.sockets)
        await connection.send_async(_HELLO.pack(*key, 0))
        return ConnectionChannel(connection, self._setup.window)

    async def await_peer(self, key: EdgeKey) -> Wire:
        """Wait until the connection has come."""
        return await self._future(key)

    def _future(self, key: EdgeKey) -> asyncio.Future[Wire]:
        return self._complete.setdefault(key, asyncio.get_running_loop().create_future())

    async def _accept(self, listener: Listener) -> None:
        while True:
            connection = await listener.accept_async()
            *key, _ = _HELLO.unpack(bytes(await connection.recv_async(_HELLO.size)))
            channel = ConnectionChannel(connection, self._setup.window)
            self._future(EdgeKey(*key)).set_result(channel)
