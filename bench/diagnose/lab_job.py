"""Four hosts with two ports each as namespaces, and what they send: bench/diagnose/named_faults.py.

a ── a0 ──┐ ToR 0 ┌── b0 ── b       each ToR a namespace with a bridge and a network of its
  └─ a1 ──┤ ToR 1 ├── b1 ──┘        own, each cable a veth pair, shaped at both ends; c and d
          c, d alike                as a and b

Linux asks for neighbours as often as `harp setup` has it: else a path stays dead for up to a second
after its link is back. It does not doubt those it has: a hole swallows ARP, too, and after 5 s
nothing would be sent into it from the other side either.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

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
from harp.cli.setup.targets import NEIGHBOUR_MS
from harp.net import Engine, Port
from lab.impairments import Impairments
from lab.offloads import SEGMENTATION
from lab.veth import End, Net

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.diagnose.strikes import Load

    from harp.cli.diagnose.snapshot import EngineRow
    from harp.net import Completion
    from lab.namespace import Namespace

HOSTS = ("a", "b", "c", "d")
RATE_BPS = 12_000_000
"""Of each port: so little that two cores carry all of them."""
MTU = 1500
_BURST_BYTES, _QUEUE_BYTES = 8 << 10, 128 << 10
_OFFLOADS = {**dict.fromkeys(SEGMENTATION, False), "tx-checksum-ip-generic": False}
TICK_S = 1e-3
"""Real traffic takes real time, and who drives it leaves the CPUs to it in between."""
WARM_S = 0.5
PATIENCE_S = 60
"""No case takes so long."""
WINDOW = 8
"""Messages of a connection under way."""


class Cable(NamedTuple):
    """Both ends of a veth pair."""

    host: End
    tor: End


class Lab:
    """The namespaces."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        try:
            net = self._stack.enter_context(Net())
            self.programs = Impairments()
            self._stack.callback(self.programs.close)
            self.hosts = [net.namespace() for _ in HOSTS]
            self._tors = [net.namespace() for _ in PORTS]
            for tor in self._tors:
                tor.run("ip", "link", "add", "bridge", "up", "type", "bridge")
            self.cables = [[_plug(host, tor, number, port) for port, tor in enumerate(self._tors)]
                           for number, host in enumerate(self.hosts)]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of all of it."""
        self._stack.close()

    def set_cable(self, host: int, port: int, *, up: bool) -> None:
        """Pull a cable at its ToR, or plug it in."""
        self._tors[port].run("ip", "link", "set", self.cables[host][port].tor.device,
                             "up" if up else "down")

    def set_rate(self, host: int, port: int, share: float) -> None:
        """Let the ToR send to a host at a share of the rate."""
        self._tors[port].run("tc", "qdisc", "change", "dev", self.cables[host][port].tor.device,
                             "root", *_tbf(RATE_BPS * share))

    def remove_nic(self, host: int, port: int) -> None:
        """Let a host's NIC vanish."""
        self.hosts[host].run("ip", "link", "delete", self.cables[host][port].host.device)

    def filter_out(self, host: int, port: int, program: bytes) -> None:
        """Let a program judge what a host sends."""
        self.programs.attach(self.cables[host][port].tor, program)

    def filter_in(self, host: int, port: int, program: bytes) -> None:
        """Let a program judge what comes to a host."""
        self.programs.attach(self.cables[host][port].host, program)


def _plug(host: Namespace, tor: Namespace, number: int, port: int) -> Cable:
    name, peer = f"{HOSTS[number]}{port}", f"t{number}"
    ends = Cable(End(host, name, f"02:00:00:00:{port + 1:02x}:{number + 1:02x}",
                     f"10.0.{port + 1}.{number + 1}", ""), End(tor, peer, "", "", ""))
    # Linux tells of a carrier late where both ends of a pair have one number.
    host.run("ip", "link", "add", "name", name, "index", str(10 + port), "address", ends.host.mac,
             "mtu", str(MTU), "type", "veth", "peer", "name", peer, "index", str(20 + number),
             "mtu", str(MTU), "netns", tor.path)
    tor.run("ip", "link", "set", peer, "master", "bridge", "up")
    host.run("ip", "address", "add", f"{ends.host.ipv4}/24", "dev", name)
    host.run("ip", "link", "set", name, "up")
    for key, value in (("retrans_time_ms", NEIGHBOUR_MS), ("delay_first_probe_time", PATIENCE_S)):
        host.sysctl(f"ipv4.neigh.{name}.{key}", value)
    for end in ends:
        end.offloads(_OFFLOADS)
        end.space.run("tc", "qdisc", "replace", "dev", end.device, "root", *_tbf(RATE_BPS))
    return ends


def _tbf(rate_bps: float) -> list[str]:
    return f"tbf rate {round(rate_bps)}bit burst {_BURST_BYTES} limit {_QUEUE_BYTES}".split()


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
        """Send and receive what can be at once."""
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
    """Loads between the hosts, and looks at them meanwhile."""

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
        """Look at all hosts several times, while it goes on."""
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
