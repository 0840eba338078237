"""Connections between hosts of the laboratory: kernel TCP, and HARP.

A wire goes from one GPU to another on one channel, over the flows of its edge. Their source ports
are those of the other fidelities, so that hashes choose the same paths. Pieces of a message are cut
evenly over the sockets of a TCP wire, as NCCL does; a HARP wire has as many paths instead.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from typing import TYPE_CHECKING, Protocol

import numpy as np

from harp.net.channel import ConnectionChannel
from harp.routing.hashes import ROCE_PORT
from sim.network.lab.messages import EdgeKey

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harp.net.engine import Engine, Listener
    from sim.network.lab.messages import EdgeFlows, Setup

    Bytes = NDArray[np.uint8]

_HELLO = struct.Struct("!6I")
"""An edge's key, the number of this socket, and how many there are."""


class Wire(Protocol):
    """One direction between two GPUs."""

    async def send(self, piece: Bytes) -> None:
        """Send a piece; its bytes may change afterwards."""

    async def take(self) -> Bytes:
        """Give the next piece that came."""


class Wires(Protocol):
    """Maker of the wires of one host."""

    unit_bytes: int
    """In which pieces pass their pacers."""
    burst_bytes: int
    """Bytes that must be through the sender's pacers before its first byte leaves."""
    flows: dict[tuple[int, int, int], EdgeFlows]
    peers: dict[str, bytes]

    async def open(self, key: EdgeKey) -> Wire:
        """Make the sender's end."""

    async def await_peer(self, key: EdgeKey) -> Wire:
        """Give the receiver's end, when the sender has made its own."""


class TcpWire:
    """Some sockets; the owner chooses the direction."""

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
    """TCP between NICs."""

    unit_bytes = 64 << 10
    """So that what paces a stream goes on all along, as in a loop of system calls."""
    burst_bytes = unit_bytes
    """The kernel copies a segment of segmentation offload whole before it leaves."""

    def __init__(self, setup: Setup) -> None:
        self.flows: dict[tuple[int, int, int], EdgeFlows] = {}
        self.peers: dict[str, bytes] = {}
        self.handles: dict[str, bytes] = {}
        self._congestion = setup.congestion
        self._arrived: dict[EdgeKey, dict[int, socket.socket]] = {}
        self._complete: dict[EdgeKey, asyncio.Future[Wire]] = {}
        self._accepting = [asyncio.ensure_future(self._accept(_listen(address)))
                           for address in setup.addresses]

    async def open(self, key: EdgeKey) -> Wire:
        """Connect all sockets, one after the other."""
        loop, sockets = asyncio.get_running_loop(), []
        flows = self.flows[key.channel, key.src, key.dst]
        for index, port in enumerate(flows.ports):
            sock = await _connect(flows, port)
            if self._congestion:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION,
                                self._congestion.encode())
            await loop.sock_sendall(sock, _HELLO.pack(*key, index, len(flows.ports)))
            sockets.append(sock)
        return TcpWire(sockets)

    async def await_peer(self, key: EdgeKey) -> Wire:
        """Wait until all sockets have come."""
        return await self._future(key)

    def _future(self, key: EdgeKey) -> asyncio.Future[Wire]:
        return self._complete.setdefault(key, asyncio.get_running_loop().create_future())

    async def _accept(self, listening: socket.socket) -> None:
        with listening:
            while True:
                sock, _ = await asyncio.get_running_loop().sock_accept(listening)
                await self._admit(sock)

    async def _admit(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = await TcpWire([sock])._read(sock, _HELLO.size)
        *key, index, count = _HELLO.unpack(hello.tobytes())
        sockets = self._arrived.setdefault(EdgeKey(*key), {})
        sockets[index] = sock
        if len(sockets) == count:
            self._future(EdgeKey(*key)).set_result(
                TcpWire([sockets[number] for number in sorted(sockets)]))


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setblocking(False)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made


def _listen(address: str) -> socket.socket:
    listening = _socket()
    listening.bind((address, ROCE_PORT))
    listening.listen(1024)
    return listening


async def _connect(flows: EdgeFlows, port: int) -> socket.socket:
    """Connect by this source port; by any where a wire of the same edge has it already."""
    for own in (port, 0):
        sock = _socket()
        try:
            sock.bind((flows.src, own))
            await asyncio.get_running_loop().sock_connect(sock, (flows.dst, ROCE_PORT))
        except OSError as error:
            sock.close()
            if not own or error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                raise
        else:
            return sock
    raise AssertionError("the kernel gives a port or says why not")


class HarpWires:
    """HARP between NICs, with an engine for each."""

    unit_bytes = 1 << 30
    """A piece is a message, which is handed over whole."""
    burst_bytes = 0
    """An engine hands over frame by frame."""

    def __init__(self, setup: Setup) -> None:
        from harp.net.engine import Engine

        self.flows: dict[tuple[int, int, int], EdgeFlows] = {}
        self.peers: dict[str, bytes] = {}
        self._setup = setup
        self._engines: dict[str, Engine] = {
            address: Engine("udp", address=f"{address}:{ROCE_PORT}", slower=setup.slower)
            for address in setup.addresses}
        self._listeners: dict[str, Listener] = {
            address: engine.listen(paths=setup.paths) for address, engine in self._engines.items()}
        self.handles = {address: bytes(listener.handle)
                        for address, listener in self._listeners.items()}
        self._complete: dict[EdgeKey, asyncio.Future[Wire]] = {}
        self._accepting = [asyncio.ensure_future(self._accept(listener))
                           for listener in self._listeners.values()]

    async def open(self, key: EdgeKey) -> Wire:
        """Connect, and send the wire's key."""
        src, dst, ports = self.flows[key.channel, key.src, key.dst]
        connection = await self._engines[src].connect_async(
            self.peers[dst], paths=len(ports),
            flows=[(f"{src}:{port}", f"{dst}:{ROCE_PORT}") for port in ports])
        await connection.send_async(_HELLO.pack(*key, 0, 1))
        return ConnectionChannel(connection, self._setup.window)

    async def await_peer(self, key: EdgeKey) -> Wire:
        """Wait until the connection has come."""
        return await self._future(key)

    def _future(self, key: EdgeKey) -> asyncio.Future[Wire]:
        return self._complete.setdefault(key, asyncio.get_running_loop().create_future())

    async def _accept(self, listener: Listener) -> None:
        while True:
            connection = await listener.accept_async()
            *key, _, _ = _HELLO.unpack(bytes(await connection.recv_async(_HELLO.size)))
            self._future(EdgeKey(*key)).set_result(
                ConnectionChannel(connection, self._setup.window))
