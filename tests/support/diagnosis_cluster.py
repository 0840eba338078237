"""Reports of a made-up job: what its hosts would count, with chance and faults."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from itertools import permutations

from harp.cli.diagnose.snapshot import (
    FORMAT,
    ConnectionRow,
    EngineRow,
    Interface,
    Moment,
    PathRow,
    Report,
)

LOOKS, STEP_S = 5, 0.5
PORTS = (0, 1)


@dataclass
class Way:
    """Fate of the packets from one port to another."""

    rate: int = 400
    """Packets from one look to the next."""
    loss: float = 0.0
    bad: float = 0.0
    """Share whose CRC does not hold."""
    open: bool = True
    fragments: int = 1
    round_trip_ns: int = 100_000
    fullness: float = 0.9
    deaths: int = 0


@dataclass
class Cluster:
    """Hosts with two ports, and connections with a path over each pair of ports of one number."""

    hosts: int
    pairs: list[tuple[int, int]]
    seed: int
    ways: dict[tuple[int, int, int], Way] = field(default_factory=dict)
    """By sender, receiver, port."""
    starved: dict[tuple[int, int], float] = field(default_factory=dict)
    """Share of the time for which one host waits for another."""
    dead_processes: set[int] = field(default_factory=set)
    checksums: dict[int, int] = field(default_factory=dict)
    """Bad ones, by host."""

    def __post_init__(self) -> None:
        self.ways = {(a, b, port): Way() for a, b in permutations(range(self.hosts), 2)
                     for port in PORTS}

    def touching(self, host: int, port: int | None = None, way: str = "both") -> list[Way]:
        """All that leaves or reaches a host, or a port of it."""
        return [each for (a, b, p), each in self.ways.items() if port in {None, p}
                and ((a == host and way != "in") or (b == host and way != "out"))]

    def reports(self) -> list[Report]:
        """Snapshots of all hosts."""
        rows = [self._look(number) for number in range(LOOKS)]
        return [Report(format=FORMAT, host=f"h{host}", moments=[
            look[host] for look in rows]) for host in range(self.hosts)]

    def _look(self, number: int) -> list[Moment]:
        paths: dict[int, list[PathRow]] = {host: [] for host in range(self.hosts)}
        connections: dict[int, list[ConnectionRow]] = {host: [] for host in range(self.hosts)}
        for index, (a, b) in enumerate(self.pairs):
            here, there = 1000 + 2 * index, 1001 + 2 * index
            waited = round(self.starved.get((a, b), 0) * number * STEP_S * 1e9)
            connections[a].append(_connection(here, there, waited))
            connections[b].append(_connection(there, here, 0))
            for port in PORTS:
                near, far = self._rows(number, (a, b, port), (here, there))
                paths[a].append(near)
                paths[b].append(far)
        return [Moment(
            monotonic_ns=round((10 * host + number * STEP_S) * 1e9),
            engines=[EngineRow(file=f"harp-0-{host}-0", alive=host not in self.dead_processes,
                               name="e", pid=100 + host, connections=connections[host],
                               paths=paths[host], events=[(1, 0, "path died: path 1")])],
            interfaces=[Interface(name=f"eth{port}", running=True,
                                  addresses=[f"10.0.{port}.{host + 1}/24"]) for port in PORTS],
            bad_checksums=self.checksums.get(host, 0) * number // (LOOKS - 1))
            for host in range(self.hosts)]

    def _rows(self, number: int, way: tuple[int, int, int],
              ids: tuple[int, int]) -> tuple[PathRow, PathRow]:
        a, b, port = way
        forth, back = self.ways[way], self.ways[b, a, port]
        lives = forth.open and back.open
        # The same draws at each look: what was counted does not become less.
        chance = random.Random(f"{self.seed} {way} {ids}")
        sent = due = lost = bad = 0
        for _ in range(number):
            step = forth.rate if lives else 5
            spoilt, gone = (_draw(chance, step, share) for share in (forth.bad, forth.loss))
            sent += step
            due += step if forth.open else 0
            lost += (gone if forth.open else 0) + spoilt
            bad += spoilt
        ends = (f"10.0.{port}.{a + 1}:7000", f"10.0.{port}.{b + 1}:7000")
        near = _path(ids[0], port, ends, forth, lives=lives, sent=sent,
                     lost=lost if lives else sent,
                     died=forth.deaths * number // (LOOKS - 1))
        far = _path(ids[1], port, ends[::-1], back, lives=True, due=due, arrived=due - lost,
                    bad=bad)
        return near, far


def _draw(chance: random.Random, count: int, share: float) -> int:
    """Draw about ``share`` of ``count``: Poisson's law, by its normal limit where that holds."""
    mean = count * share
    if mean > 20:
        return min(count, max(0, round(chance.gauss(mean, mean ** 0.5))))
    drawn, left = 0, chance.random() - math.exp(-mean)
    weight = math.exp(-mean)
    while left > 0 and drawn < count:
        drawn += 1
        weight *= mean / drawn
        left -= weight
    return drawn


def _connection(own: int, peer: int, starved_ns: int) -> ConnectionRow:
    return ConnectionRow(id=own, peer_id=peer, state="open", reason=0, starved_ns=starved_ns)


def _path(connection: int, number: int, ends: tuple[str, str], way: Way, *, lives: bool,
          sent: int = 0, lost: int = 0, died: int = 0, due: int = 0, arrived: int = 0,
          bad: int = 0) -> PathRow:
    return PathRow(connection=connection, number=number, local=ends[0], remote=ends[1],
                   alive=int(lives), mtu_fails=0, fragments=way.fragments,
                   frame_bytes=1400 // way.fragments, window_bytes=100_000,
                   bytes_in_flight=round(100_000 * way.fullness), sent=sent, lost=lost, spurious=0,
                   died=died, smoothed_ns=way.round_trip_ns, due=due, arrived=arrived,
                   bad_payloads=bad)


def all_to_all(hosts: int, seed: int = 1) -> Cluster:
    """Every host sends to every other one."""
    return Cluster(hosts, list(permutations(range(hosts), 2)), seed)
