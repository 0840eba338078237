"""Hosts with two ports each and their job, packet by packet in virtual time.

a ── a0 ──┐ ToR 0 ┌── b0 ── b        the cables of lab_job.py, at 50 Mb/s a port, and the sessions
  └─ a1 ──┤ ToR 1 ├── b1 ──┘         that hosts run: their counters are those of an engine's
          c, d ... alike             statistics
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from bench.diagnose.strikes import NAMES, PORTS, address
from harp.cli.diagnose.snapshot import (
    FORMAT,
    MOMENTS,
    SECONDS,
    ConnectionRow,
    EngineRow,
    Interface,
    Moment,
    PathRow,
    Report,
)
from sim.network.packet.packet_world import End, LinkFaults, Stage, World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.diagnose.strikes import Load

RATE_BPS = 50e6
"""Of each port: so little that seconds of ten hosts are simulated in some."""
LATENCY_S = 20e-6
"""Of each link."""
BUFFER_BYTES = 256 << 10
"""Of each ToR for each of its hosts."""
SEGMENT, OVERHEAD, PREAMBLE_ETHERNET = 1408, 66, 38
PIECE = 64 << 10
SLOTS = 8
"""Pieces of a connection under way."""
TICK_NS = 5_000_000


class PacketLab:
    """The network, with the verbs of `bench.diagnose.strikes.Network`."""

    def __init__(self, hosts: int, seed: int) -> None:
        self.hosts = hosts
        self.world = world = World(seed=seed, segment=SEGMENT, overhead=OVERHEAD, slots=SLOTS,
                                   piece_bytes=PIECE, unit_bytes=PIECE)
        self.up = [[world.add_link(RATE_BPS, LATENCY_S, target=tor) for tor in PORTS]
                   for _ in range(hosts)]
        self.down = [[world.add_link(RATE_BPS, LATENCY_S, source=tor) for tor in PORTS]
                     for _ in range(hosts)]
        world.share_buffers(len(PORTS), BUFFER_BYTES * hosts, 1.0)
        free = world.add_chain([], [])
        self.ends = [End(world.add_process(), free, free) for _ in range(hosts)]
        self.is_up = [[True for _ in PORTS] for _ in range(hosts)]

    def set_cable(self, host: int, port: int, *, up: bool) -> None:
        """See `bench.diagnose.strikes.Network`."""
        self.is_up[host][port] = up
        for link in (self.up[host][port], self.down[host][port]):
            self.world.set_rate(link, RATE_BPS * up)

    def set_rate(self, host: int, port: int, share: float) -> None:
        """See `bench.diagnose.strikes.Network`."""
        self.world.set_rate(self.down[host][port], RATE_BPS * share)

    def lose(self, host: int, port: int, share: float) -> None:
        """See `bench.diagnose.strikes.Network`."""
        self.world.set_faults(self.up[host][port], LinkFaults(drop=share))

    def lose_arriving(self, host: int, port: int, share: float) -> None:
        """See `bench.diagnose.strikes.Network`."""
        self.world.set_faults(self.down[host][port], LinkFaults(drop=share))

    def corrupt(self, host: int, port: int, share: float) -> None:
        """See `bench.diagnose.strikes.Network`: a switch that checks each frame's FCS drops it."""
        self.lose(host, port, share)

    def shrink_mtu(self, host: int, port: int, nbytes: int) -> None:
        """See `bench.diagnose.strikes.Network`."""
        self.world.set_faults(self.up[host][port],
                              LinkFaults(longest_bytes=nbytes + PREAMBLE_ETHERNET))


class PacketJob:
    """Loads between hosts, for ever, and looks at them."""

    def __init__(self, lab: PacketLab, loads: Sequence[Load]) -> None:
        self.lab, self.loads = lab, loads
        world = lab.world
        there = [[world.add_route([lab.up[load.source][port], lab.down[load.target][port]])
                  for port in PORTS] for load in loads]
        back = [[world.add_route([lab.up[load.target][port], lab.down[load.source][port]])
                 for port in PORTS] for load in loads]
        self._channels = [
            world.add_connection(lab.ends[load.source], lab.ends[load.target], forth, back)
            for load, forth, back in zip(loads, there, back, strict=True)]
        self._flow_of: dict[int, int] = {}
        """By run: a message."""
        self._sent = [0] * len(loads)

    def run(self, seconds: float, then: Callable[[float], object] = lambda _: None) -> None:
        """See `bench.diagnose.strikes.Job`."""
        world = self.lab.world
        for _ in range(round(seconds * 1e9) // TICK_NS):
            until_ns = world.now_ns + TICK_NS
            then(world.now_ns * 1e-9)
            self._begin()
            while (stop := world.advance(until_ns))[0] != "time":
                del self._flow_of[stop[1]]
                self._begin()

    def _begin(self) -> None:
        """Send by each flow that has few messages under way and a load that is due."""
        world, busy = self.lab.world, Counter(self._flow_of.values())
        now_s = world.now_ns * 1e-9
        for flow, load in enumerate(self.loads):
            pieces = -(-load.message_bytes // PIECE)
            for _ in range(busy[flow], max(1, SLOTS // pieces)):
                if not load.sends(now_s, self._sent[flow]):
                    break
                run = world.add_run(2, 1)
                assert world.advance(world.now_ns) == ("load", run)
                world.load(run, Stage([0], [1], [self._channels[flow]], [load.message_bytes],
                                      [pieces]))
                self._flow_of[run] = flow
                self._sent[flow] += load.message_bytes

    def reports(self, then: Callable[[float], object] = lambda _: None) -> list[Report]:
        """See `bench.diagnose.strikes.Job`."""
        looks = [[self._look(host) for host in range(self.lab.hosts)]]
        for _ in range(MOMENTS - 1):
            self.run(SECONDS / (MOMENTS - 1), then)
            looks.append([self._look(host) for host in range(self.lab.hosts)])
        return [Report(format=FORMAT, host=NAMES[host], moments=[look[host] for look in looks])
                for host in range(self.lab.hosts)]

    def _look(self, host: int) -> Moment:
        connections, paths = [], []
        for channel, load in zip(self._channels, self.loads, strict=True):
            for end, (own, other) in enumerate(((load.source, load.target),
                                                (load.target, load.source))):
                if own == host:
                    rows = self._rows(channel, end, own, other)
                    paths += [row for row, _ in rows]
                    connections += [ConnectionRow(id=row.connection, peer_id=row.connection ^ 1,
                                                  starved_ns=starved) for row, starved in rows[:1]]
        return Moment(
            monotonic_ns=self.lab.world.now_ns, bad_checksums=0, interfaces=[
                Interface(name=f"{NAMES[host]}{port}", running=self.lab.is_up[host][port],
                          addresses=[f"{address(host, port)}/24"]) for port in PORTS],
            engines=[EngineRow(file=f"engine-{host}", alive=True, name="job", pid=host + 1,
                               connections=connections, paths=paths, events=[])])

    def _rows(self, channel: int, end: int, own: int, other: int) -> list[tuple[PathRow, int]]:
        found = []
        for port in PORTS:
            counts = self.lab.world.path_counts(channel, end, port)
            if counts is not None:
                row = PathRow(connection=2 * (channel + 1) + end, number=port,
                              local=f"{address(own, port)}:7000",
                              remote=f"{address(other, port)}:7000", **counts._asdict())
                found.append((row, counts.starved_ns))
        return found
