"""Four hosts with two ports each (`lab.dual_tor`), and the loads between them."""

from __future__ import annotations

import time
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING

from bench.diagnose.strikes import PORTS
from harp.cli.diagnose.snapshot import (
    FORMAT,
    MOMENTS,
    SECONDS,
    Moment,
    Report,
    bad_checksums,
    engines,
    interfaces,
)
from harp.net import Engine, Port
from lab.dual_tor import DualTor, Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.diagnose.strikes import Load
    from harp.cli.diagnose.snapshot import EngineRow
    from harp.net import Completion

HOSTS = ("a", "b", "c", "d")
RATE_BPS = 12_000_000
"""Of each port: so little that two cores carry all of them."""
TICK_S = 1e-3
"""Real traffic takes real time; its driver leaves the CPUs to it in between."""
WARM_S = 0.5
PATIENCE_S = 60
"""Longer than any case."""
WINDOW = 8
"""Messages of a connection under way."""


class Lab(DualTor):
    """Four hosts; a dead neighbour stays valid.

    A black hole swallows ARP, too, and after 5 s the kernel would send nothing into it from the
    other side either.
    """

    def __init__(self) -> None:
        super().__init__(HOSTS, Queue(RATE_BPS, 128 << 10, 8 << 10))
        for host, cables in zip(self.hosts, self.cables, strict=True):
            for cable in cables:
                host.sysctl(f"ipv4.neigh.{cable.host.device}.delay_first_probe_time", PATIENCE_S)

    def filter_out(self, host: int, port: int, program: bytes) -> None:
        """Let a program judge packets that a host sends."""
        self.impairments.attach(self.cables[host][port].tor, program)

    def filter_in(self, host: int, port: int, program: bytes) -> None:
        """Let a program judge packets that arrive at a host."""
        self.impairments.attach(self.cables[host][port].host, program)


class _Flow:
    """A connection with a path for each port, and messages on it."""

    def __init__(self, load: Load, engines: Sequence[Engine], lab: Lab) -> None:
        self.load = load
        listener = engines[load.target].listen(paths=len(PORTS))
        with lab.hosts[load.source].entered():
            self._near = engines[load.source].connect(listener.handle, paths=len(PORTS),
                                                      timeout=20)
        self._far = listener.accept(timeout=20)
        self._data = bytes(load.message_bytes)
        self._buffer = bytearray(load.message_bytes)
        self._sent: deque[Completion] = deque()
        self._posted: deque[Completion] = deque()
        self._sends = 0
        self.received = 0

    def pump(self, now_s: float, most_received: float) -> None:
        """Send and receive without waiting."""
        while self._posted and self._posted[0].done():
            self._posted.popleft().result()
            self.received += self.load.message_bytes
        posted = len(self._posted) * self.load.message_bytes
        while len(self._posted) < WINDOW and self.received + posted <= most_received:
            self._posted.append(self._far.post(bytearray(self.load.message_bytes)))
            posted += self.load.message_bytes
        while self._sent and self._sent[0].done():
            self._sent.popleft().result()
        while (len(self._sent) < WINDOW
               and self.load.sends(now_s, self._sends * self.load.message_bytes)):
            self._sent.append(self._near.send(self._data))
            self._sends += 1


class Traffic:
    """Loads between the hosts, and snapshots of them meanwhile."""

    def __init__(self, lab: Lab, loads: Sequence[Load]) -> None:
        self.lab = lab
        self._stack = ExitStack()
        self.slow: dict[int, float] = {}
        """Bits a second that a host takes of each connection at most; others take all."""
        self.engines = []
        for number, host in enumerate(lab.hosts):
            with host.entered():
                self.engines.append(self._stack.enter_context(Engine([
                    Port("udp", interface=cable.host.device) for cable in lab.cables[number]])))
        self._flows = [_Flow(load, self.engines, lab) for load in loads]
        self._files = [engine.stats_path.rpartition("/")[2] for engine in self.engines]
        self._began_s = time.monotonic()
        self._slow_from: dict[int, tuple[float, dict[int, int]]] = {}

    def close(self) -> None:
        """End it."""
        self._stack.close()

    def run(self, seconds: float, then: Callable[[], None] | None = None) -> None:
        """Let it go on for a while; ``then`` is called at each turn."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            now_s = time.monotonic() - self._began_s
            for number, flow in enumerate(self._flows):
                flow.pump(now_s, self._allowed(number, flow, now_s))
            if then:
                then()
            time.sleep(TICK_S)

    def _allowed(self, number: int, flow: _Flow, now_s: float) -> float:
        target = flow.load.target
        if target not in self.slow:
            return float("inf")
        begin_s, had = self._slow_from.setdefault(target, (now_s, {}))
        return had.setdefault(number, flow.received) + (
            (now_s - begin_s) * self.slow[target] / 8)

    def reports(self, then: Callable[[], None] | None = None) -> list[Report]:
        """Take several snapshots of all hosts, while it goes on."""
        looks: list[list[Moment]] = [[] for _ in HOSTS]
        for number in range(MOMENTS):
            rows = engines()
            for host, look in enumerate(looks):
                look.append(self._look(host, rows))
            if number < MOMENTS - 1:
                self.run(SECONDS / (MOMENTS - 1), then)
        return [Report(format=FORMAT, host=HOSTS[host], moments=look)
                for host, look in enumerate(looks)]

    def _look(self, host: int, rows: list[EngineRow]) -> Moment:
        """Each host sees its own engine, though one process has all."""
        with self.lab.hosts[host].entered():
            return Moment(monotonic_ns=time.monotonic_ns(), interfaces=interfaces(),
                          bad_checksums=bad_checksums(),
                          engines=[row for row in rows if row.file == self._files[host]])
