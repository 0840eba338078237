"""Traffic of scenes on the real stack: HARP over both ports, and two flows of kernel TCP.

Messages go without end from the sender to the receiver, which compares them with the originals.
Time is the monotonic clock's.
"""

from __future__ import annotations

import random
import socket
import struct
import time
import zlib
from collections import deque
from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from bench.tccl.goodput import Run, Sample, bins_of, lateness
from bench.tccl.two_ports import HOST_ADDRESSES, RATE_BPS, Lab
from harp.net import EndedError, Engine, Port
from lab.dual_tor import MTU, PORTS
from lab.impairments import ETHERNET_BYTES

if TYPE_CHECKING:
    from bench.tccl.scenes import Scene
    from harp.net import Completion

MESSAGE = 128 << 10
WINDOW = 16
"""Messages under way."""
TICK_S = 5e-4
"""Real traffic takes real time; the watcher leaves the CPUs to it in between."""
DRAIN_S = 20.0
"""Longest wait for the last messages."""
PATTERN = random.Random(1).randbytes(2 * MESSAGE)
TCP_PORT = 5001
_TCP_HEADERS = 20 + 32  # IPv4, TCP with timestamps
_TOTAL_RETRANS = 100  # offset in struct tcp_info


class Traffic(Protocol):
    """Messages from sender to receiver."""

    capacity_bps: float
    """Goodput of both ports."""

    def pump(self, allowed_bytes: float) -> None:
        """Send and receive without waiting; the receiver takes ``allowed_bytes`` since the start.

        More may arrive all the same, into the buffers that it had ready.
        """

    def received_bytes(self) -> int:
        """Payload that arrived, each byte counted once."""

    def sent_again(self) -> int:
        """Number of retransmissions."""

    def drain(self) -> None:
        """Send no more, and await the messages under way."""

    def missing(self) -> int:
        """Bytes that were sent and did not arrive, or arrived wrong."""

    def close(self) -> None:
        """End it."""


def _message(number: int) -> memoryview:
    first = number * 97 % MESSAGE
    return memoryview(PATTERN)[first:first + MESSAGE]


class HarpTraffic:
    """One connection with a path for each port."""

    def __init__(self, lab: Lab) -> None:
        self._stack = ExitStack()
        engines = []
        for number, host in enumerate(lab.hosts):
            with host.entered():
                engines.append(self._stack.enter_context(Engine([
                    Port("udp", interface=lab.cables[number][port].host.device)
                    for port in PORTS])))
        listener = engines[1].listen(paths=len(PORTS))
        with lab.hosts[0].entered():
            self._near = engines[0].connect(listener.handle, paths=len(PORTS), timeout=20)
        self._far = listener.accept(timeout=20)
        segment = self._near.segment
        self._frame_bytes = MESSAGE / -(-MESSAGE // segment)  # a message's last frame is short
        frame = int(self._near.paths[0].state["frame_bytes"]) + 28
        self.capacity_bps = len(PORTS) * RATE_BPS * segment / (frame + ETHERNET_BYTES)
        self._sent: deque[Completion] = deque()
        self._posted: deque[tuple[Completion, bytearray]] = deque()
        self._sends = self._takes = self._posts = self._wrong = 0

    def pump(self, allowed_bytes: float) -> None:
        """See `Traffic`."""
        self._take()
        taken = min(self._takes * MESSAGE, allowed_bytes)
        while self._posts * MESSAGE < taken + WINDOW * MESSAGE:
            buffer = bytearray(MESSAGE)
            self._posted.append((self._far.post(buffer), buffer))
            self._posts += 1
        self._forget_sent()
        while len(self._sent) < WINDOW:
            self._sent.append(self._near.send(_message(self._sends)))
            self._sends += 1

    def _forget_sent(self) -> None:
        while self._sent and self._sent[0].done():
            self._sent.popleft().result()

    def _take(self) -> None:
        while self._posted and self._posted[0][0].done():
            completion, buffer = self._posted.popleft()
            completion.result()
            self._wrong += MESSAGE * (buffer != _message(self._takes))
            self._takes += 1

    def received_bytes(self) -> int:
        """See `Traffic`."""
        return round(self._far.info.counters["placed"] * self._frame_bytes)

    def sent_again(self) -> int:
        """See `Traffic`."""
        return self._near.info.counters["data_again"]

    def drain(self) -> None:
        """See `Traffic`."""
        while self._posts < self._sends:
            buffer = bytearray(MESSAGE)
            self._posted.append((self._far.post(buffer), buffer))
            self._posts += 1
        until_s = time.monotonic() + DRAIN_S
        while self._takes < self._sends and time.monotonic() < until_s:
            self._take()
            self._forget_sent()
            time.sleep(TICK_S)

    def missing(self) -> int:
        """See `Traffic`."""
        return self._wrong + (self._sends - self._takes) * MESSAGE

    def close(self) -> None:
        """See `Traffic`."""
        self._stack.close()


class TcpFlow:
    """A connection of kernel TCP, over which a pattern goes without end."""

    def __init__(self, lab: Lab, source_port: int, target_port: int) -> None:
        with lab.hosts[1].entered():
            listening = socket.create_server((HOST_ADDRESSES[1], target_port))
        with listening, lab.hosts[0].entered():
            self.near = socket.socket()
            self.near.bind((HOST_ADDRESSES[0], source_port))
            self.near.connect((HOST_ADDRESSES[1], target_port))
            self.far, _ = listening.accept()
        for end in (self.near, self.far):
            end.setblocking(False)
        self.sent = self.received = self._sent_sum = self._received_sum = 0

    def send(self) -> None:
        """Send as much as the kernel takes."""
        while True:
            first = self.sent % MESSAGE
            try:
                count = self.near.send(memoryview(PATTERN)[first:first + MESSAGE])
            except BlockingIOError:
                return
            self._sent_sum = zlib.crc32(PATTERN[first:first + count], self._sent_sum)
            self.sent += count

    def receive(self, most: int) -> None:
        """Take the bytes that have arrived."""
        while most > 0:
            try:
                data = self.far.recv(min(most, 1 << 18))
            except BlockingIOError:
                return
            if not data:
                return
            self._received_sum = zlib.crc32(data, self._received_sum)
            self.received += len(data)
            most -= len(data)

    def missing(self) -> int:
        """Bytes that have not arrived, or all if the checksums differ."""
        wrong = self.sent == self.received and self._sent_sum != self._received_sum
        return self.sent if wrong else self.sent - self.received

    def retransmitted(self) -> int:
        """Segments that were sent again."""
        info = self.near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        return int(struct.unpack_from("I", info, _TOTAL_RETRANS)[0])

    def close(self) -> None:
        """End it."""
        self.near.close()
        self.far.close()


class TcpTraffic:
    """Two flows, which the kernel hashes to these ports."""

    def __init__(self, lab: Lab, ports: tuple[int, ...]) -> None:
        self.capacity_bps = (len(PORTS) * RATE_BPS * (MTU - _TCP_HEADERS) / (MTU + ETHERNET_BYTES))
        self._flows = []
        for number, port in enumerate(ports):
            target, first = TCP_PORT + number, 40_000 + 2_000 * number
            source = _source_port(lab, first, port, target) if lab.hashes_ports else first
            self._flows.append(TcpFlow(lab, source, target))

    def pump(self, allowed_bytes: float) -> None:
        """See `Traffic`."""
        for flow in self._flows:
            flow.receive(int(allowed_bytes - self.received_bytes()) if allowed_bytes < float("inf")
                         else 1 << 30)
            flow.send()

    def received_bytes(self) -> int:
        """See `Traffic`."""
        return sum(flow.received for flow in self._flows)

    def sent_again(self) -> int:
        """See `Traffic`."""
        return sum(flow.retransmitted() for flow in self._flows)

    def drain(self) -> None:
        """See `Traffic`."""
        until_s = time.monotonic() + DRAIN_S
        while self.missing() and time.monotonic() < until_s:
            for flow in self._flows:
                flow.receive(1 << 30)
            time.sleep(TICK_S)

    def missing(self) -> int:
        """See `Traffic`."""
        return sum(flow.missing() for flow in self._flows)

    def close(self) -> None:
        """See `Traffic`."""
        for flow in self._flows:
            flow.close()


def _source_port(lab: Lab, first: int, port: int, target_port: int) -> int:
    """A source port for which data and ACKs of a flow leave by this port of the host."""
    devices = [lab.cables[number][port].host.device for number in (0, 1)]
    for source in range(first, first + 500):
        if [lab.port_of(source, target_port, back=back) for back in (False, True)] == devices:
            return source
    raise RuntimeError(f"the kernel hashes no port from {first} on to port {port}")


def run_lab(scene: Scene, stack: str) -> Run:
    """Play a scene with ``harp``, or with the stack that `bench.tccl.scenes.Scene.tcp` names."""
    lab = Lab(hashes_ports=stack != "tcp-2+3")
    try:
        traffic: Traffic = (HarpTraffic(lab) if stack == "harp" else
                            TcpTraffic(lab, PORTS if stack == "tcp" else (0, 0)))
        try:
            return _watch(lab, traffic, scene)
        finally:
            traffic.close()
    finally:
        lab.close()


def _watch(lab: Lab, traffic: Traffic, scene: Scene) -> Run:
    samples: list[Sample] = []
    moments = deque(scene.moments)
    began_s = time.monotonic()
    done_s: list[float] = []
    limit_from: tuple[float, int] | None = None
    error = ""
    try:
        while (now_s := time.monotonic() - began_s) < scene.end_s:
            if moments and now_s >= moments[0].at_s:
                done_s.append(now_s)
                moments.popleft().action(lab)
                if lab.share < 1 and limit_from is None:
                    limit_from = (now_s, traffic.received_bytes())
            allowed = float("inf")
            if limit_from is not None:
                since_s, had = limit_from
                allowed = had + (now_s - since_s) * lab.share * traffic.capacity_bps / 8
            traffic.pump(allowed)
            came = int(min(traffic.received_bytes(), allowed))
            samples.append(Sample(now_s, came, traffic.sent_again()))
            time.sleep(TICK_S)
        traffic.drain()
    except (EndedError, OSError) as ended:
        error = f"{type(ended).__name__}: {ended}"
    signs = [late.at_s for early, late in pairwise(samples)
             if late.again > early.again]
    return Run(bins_of(samples, scene.end_s), signs, traffic.capacity_bps, traffic.missing(), error,
               done_s, lateness(samples))
