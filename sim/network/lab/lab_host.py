"""The process of one host of the laboratory: all of its ranks, their wires and their pacers.

It runs in the host's namespace, reads commands from standard input, answers on standard output, and
ends when either is closed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from harp.collectives.execute import Execution
from sim.network.lab.messages import (
    Connect,
    Done,
    EdgeKey,
    Job,
    Peers,
    Ready,
    Setup,
    read_message,
    send_message,
)
from sim.network.lab.pace import EdgePace, Pacers, sleep_until
from sim.network.lab.wires import HarpWires, TcpWires

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from sim.network.lab.messages import Part
    from sim.network.lab.wires import Wire

    Bytes = NDArray[np.uint8]
    Arrivals = asyncio.Queue[tuple[float, Bytes]]


NAP_S = 0.01
WARMING = 2
"""Messages of a slot that each connection carries first."""


class Host:
    """The ranks of one host."""

    def __init__(self, setup: Setup) -> None:
        self.own = frozenset(setup.own)
        self.slot_bytes = setup.window.slot_bytes
        self.pacers = Pacers()
        self.paces: dict[tuple[int, int, int], EdgePace] = {}
        self.wires: TcpWires | HarpWires
        self.wires = TcpWires(setup) if setup.stack == "tcp" else HarpWires(setup)
        self._room = setup.window.slots * max(1, self.slot_bytes // self.wires.unit_bytes)
        self._out: dict[EdgeKey, asyncio.Task[Wire]] = {}
        self._into: dict[EdgeKey, Arrivals] = {}
        self._readers: list[asyncio.Task[None]] = []

    async def connect(self, job: Connect) -> None:
        """Make this host's ends of connections, and wait for the other ends of those that come."""
        self.paces.update(job.paces)
        self.wires.flows.update(job.flows)
        keys = [EdgeKey(job.lane, *edge) for edge in job.edges]
        await asyncio.gather(*(self._warm(key) for key in keys if key.src in self.own),
                             *(self._welcome(key) for key in keys if key.dst in self.own))

    async def _warm(self, key: EdgeKey) -> None:
        """Connect, and send what lets the stack learn of the way, before anything is timed."""
        wire = await self.wire(key)
        for _ in range(WARMING):
            await wire.send(np.zeros(self.slot_bytes, np.uint8))

    async def _welcome(self, key: EdgeKey) -> None:
        wire = await self.wires.await_peer(key)
        for _ in range(WARMING):
            await wire.take()
        self._into[key] = asyncio.Queue(self._room)
        self._readers.append(asyncio.ensure_future(self._read(key, wire, self._into[key])))

    async def run(self, job: Job) -> None:
        """Run this host's parts of a plan."""
        await asyncio.gather(*(self._run_part(job, part) for part in job.parts))

    async def _run_part(self, job: Job, part: Part) -> None:
        gpus = job.placement[part.channel]
        gpu = gpus[part.rank]

        def channel_to(peer: int) -> Channel:
            there = gpus[peer]
            return Channel(self, EdgeKey(job.lane, part.channel, gpu, there),
                           EdgeKey(job.lane, part.channel, there, gpu), job.messages)

        await Execution(job.plan, part.rank, f"<i{job.plan.unit_bytes}", channel_to, job.window,
                        share=(part.channel, len(job.placement))).run()

    def pace(self, key: EdgeKey) -> EdgePace:
        """Pace of an edge."""
        return self.paces[key.channel, key.src, key.dst]

    def wire(self, key: EdgeKey) -> asyncio.Task[Wire]:
        """The sender's end of an edge between hosts, made when it is first used."""
        if key not in self._out:
            self._out[key] = asyncio.ensure_future(self.wires.open(key))
        return self._out[key]

    def arrivals(self, key: EdgeKey) -> Arrivals:
        """Arrivals of an edge: the time at which each counts, and the piece."""
        if key not in self._into:
            assert key.src in self.own, "an edge between hosts is connected before it is used"
            self._into[key] = asyncio.Queue(self._room)
        return self._into[key]

    async def _read(self, key: EdgeKey, wire: Wire, arrivals: Arrivals) -> None:
        loop = asyncio.get_running_loop()
        line = self.wires.flows[key.channel, key.src, key.dst].dst
        while True:
            piece = await wire.take()
            pace, now_s = self.pace(key), loop.time()
            done_s = self.pacers.catch_up(len(piece), pace.into, line, pace.line_s, now_s)
            await arrivals.put((done_s + pace.way_s(len(piece)), piece))


@dataclass(frozen=True)
class Channel:
    """Both ways between a rank of this host and a peer, paced."""

    host: Host
    out: EdgeKey
    into: EdgeKey
    messages: float
    """Messages of a piece for the network."""

    async def send(self, piece: Bytes) -> None:
        """Send a piece, unit by unit, when all that each needs on this host is free."""
        unit = self.host.wires.unit_bytes
        begin_s, _ = self._handled_s(self.out, sends=True)
        for first in range(0, max(len(piece), 1), unit):
            begin_s = await self._send_unit(piece[first:first + unit], begin_s)

    async def _send_unit(self, piece: Bytes, begin_s: float) -> float:
        """Return when the next one may begin: our own lateness does not put it off."""
        host, key, pace = self.host, self.out, self.host.pace(self.out)
        uses = [*pace.out, (("edge", key), pace.ceiling_s)]
        loop = asyncio.get_running_loop()
        start_s = host.pacers.reserve(len(piece), uses, begin_s)
        slowest_s = max(byte_s for _, byte_s in uses)
        if key.dst in host.own:
            ready_s = start_s + len(piece) * slowest_s + pace.latency_s
            await host.arrivals(key).put((ready_s, piece.copy()))
            return max(start_s, loop.time())
        due_s = start_s + min(len(piece), host.wires.burst_bytes) * slowest_s
        await sleep_until(due_s)
        awake_s = loop.time()
        await (await host.wire(key)).send(piece)
        return due_s + loop.time() - awake_s

    async def receive(self, nbytes: int) -> Bytes:
        """Give the next piece when it counts as arrived and this host has had time for it."""
        units: list[Bytes] = []
        missing, ready_s = nbytes, 0.0
        while not units or missing > 0:
            ready_s, unit = await self.host.arrivals(self.into).get()
            units.append(unit)
            missing -= len(unit)
        if missing < 0:
            raise ValueError(f"{nbytes - missing} B came where {nbytes} B were to come")
        handled_s, cost_s = self._handled_s(self.into, sends=False)
        await sleep_until(max(handled_s, ready_s + cost_s))
        return units[0] if len(units) == 1 else np.concatenate(units)

    def _handled_s(self, key: EdgeKey, *, sends: bool) -> tuple[float, float]:
        """End of a piece's messages at this host's proxy, and their cost."""
        pace, gpu = self.host.pace(key), key.src if sends else key.dst
        thread = pace.threads and pace.threads[0 if sends else 1]
        cost_s = pace.message_s * self.messages
        return self.host.pacers.handle(("proxy", gpu), thread, cost_s,
                                       asyncio.get_running_loop().time()), cost_s


async def serve(commands: IO[bytes], answers: IO[bytes]) -> None:
    """Do what is asked until nobody asks any more."""
    host = Host(read_message(commands))
    send_message(answers, Ready(host.wires.handles))
    loop, asked = asyncio.get_running_loop(), asyncio.Queue[Any]()
    threading.Thread(target=_read_commands, args=(commands, lambda message:
                     loop.call_soon_threadsafe(asked.put_nowait, message)), daemon=True).start()
    running: set[asyncio.Task[None]] = set()
    while (message := await asked.get()) is not None:
        if isinstance(message, Peers):
            host.wires.peers = message.handles
            continue
        task = asyncio.ensure_future(_answer(host, message, answers))
        running.add(task)
        task.add_done_callback(running.discard)


async def _answer(host: Host, job: Job | Connect, answers: IO[bytes]) -> None:
    error, lateness = "", Lateness()
    try:
        await (host.connect(job) if isinstance(job, Connect) else host.run(job))
    except Exception as failed:  # whatever it is, the laboratory is to hear of it
        error = f"{type(failed).__name__}: {failed}"
    send_message(answers, Done(job.number, lateness.end(), error, host.pacers.asked_s()))


class Lateness:
    """Lateness of the event loop while other processes have the processor."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began_s, self._late_s = self._loop.time(), 0.0
        self._task = asyncio.ensure_future(self._nap())

    async def _nap(self) -> None:
        while True:
            due_s = self._loop.time() + NAP_S
            await asyncio.sleep(NAP_S)
            self._late_s += max(self._loop.time() - due_s - NAP_S / 4, 0.0)

    def end(self) -> float:
        """Share of the time that was lost."""
        self._task.cancel()
        return self._late_s / max(self._loop.time() - self._began_s, NAP_S)


def _read_commands(commands: IO[bytes], deliver: Callable[[Any], None]) -> None:
    try:
        while True:
            deliver(read_message(commands))
    except EOFError:
        deliver(None)


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "wb") as replies:
        os.dup2(2, 1)  # what is printed by mistake is no answer
        asyncio.run(serve(sys.stdin.buffer, replies))
        os._exit(0)  # engines and sockets end with the process
