"""HARP's congestion control among its own kind, tried in the packet network.

``python -m tests.sim.network.packet.fairness_scenes`` prints the table of docs/inside/packet.md;
with ``search`` it runs all combinations of a grid and prints the worst. Both print the same numbers
on every machine.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields, replace
from itertools import pairwise, product
from random import Random

from sim.network.packet.packet_world import End, Stage, World

MS = 1_000_000
SEGMENT, OVERHEAD, HARP = 4096, 66, 44
FRAME_BITS = 8 * (SEGMENT + OVERHEAD + HARP)
SETTLING, INTERVALS = 5, 15
"""Intervals that flows have to settle, and all intervals."""


@dataclass(frozen=True)
class Scene:
    """Flows without end, through one switch, into one port."""

    flows: int = 16
    gbps: float = 25.0
    buffer_kb: int = 32_768
    """Of the port."""
    mark_kb: int = 0
    """Queue at the port from which it marks; 0: never."""
    base_us: int = 8
    """Round trip of the empty path, without serialisation, of the first flow."""
    base_last_us: int = 0
    """Of the last flow, the others evenly between; 0: all alike."""
    apart_ms: float = 0.0
    """From one flow's start to the next one's."""
    last_ms: float = 0.0
    """How much later the last flow begins than it would."""
    hosts: int = 0
    """Hosts that the flows come from; 0: one each."""
    both: bool = False
    """The receiver sends as much to each."""
    ring: bool = False
    """Each flow goes to the next host, which is a port for each, and not all to one."""
    seed: int = 0
    """Of how much of 100 us each flow begins later; 0: none."""

    def __str__(self) -> str:
        """Fields that differ from their defaults."""
        given = [f"{field.name}={getattr(self, field.name)}" for field in fields(self)
                 if field.name == "flows" or getattr(self, field.name) != field.default]
        return " ".join(given)


@dataclass(frozen=True)
class Result:
    """Result of a scene once flows had settled: from the sixth interval after the last start on.

    An interval is 10 ms, or as long as a flow needs for 100 frames at its fair share.
    """

    jain: float
    """Jain's index of the flows' frames (DEC-TR-301, 1984), in the worst interval."""
    least: float
    """The least that a flow got in all intervals together, over its fair share."""
    use: float
    """Share of the ports' rate that was new data with its headers."""
    lost: float
    """Share of the frames that the port dropped."""
    queue_us: float
    """Mean of what waited at the port, in time."""
    fair_ms: float
    """From the last start until the index stayed above 0.9."""

    def __str__(self) -> str:
        """One line of the search."""
        return (f"jain {self.jain:.3f} least {self.least:.2f} use {self.use:.3f} lost "
                f"{100 * self.lost:.2f} % queue {self.queue_us:.0f} us fair after "
                f"{self.fair_ms:.0f} ms")


class Port:
    """The network of a scene, and its flows."""

    def __init__(self, scene: Scene) -> None:
        rate, hosts = scene.gbps * 1e9, scene.hosts or scene.flows
        self.scene = scene
        self.world = world = World(seed=scene.seed, segment=SEGMENT, overhead=OVERHEAD, slots=8,
                                   piece_bytes=4 << 20, unit_bytes=65536)
        first_us, last_us = scene.base_us, scene.base_last_us or scene.base_us
        # A round trip crosses four links; two of them are the receiver's.
        latency_s = [(first_us / 4 + (last_us - first_us) / 2 * host / max(hosts - 1, 1)) * 1e-6
                     for host in range(hosts)] + [first_us / 4 * 1e-6]
        self.up = [world.add_link(rate, s) for s in latency_s]
        self.down = [world.add_link(rate, s, source=0, mark_bytes=scene.mark_kb * 1000)
                     for s in latency_s]
        whole_to_one = 1024.0
        world.share_buffers(1, scene.buffer_kb * 1000, whole_to_one)
        self.free = world.add_chain([], [])
        self.process = [world.add_process() for _ in range(hosts + 1)]
        senders = [flow % hosts for flow in range(scene.flows)]
        receivers = [(sender + 1) % hosts if scene.ring else hosts for sender in senders]
        pairs = list(zip(senders, receivers, strict=True))
        self.there = [self._connect(sender, receiver) for sender, receiver in pairs]
        self.back = [self._connect(receiver, sender) for sender, receiver in pairs if scene.both]
        self.ports = sorted({self.down[receiver] for receiver in receivers})

    def _connect(self, src: int, dst: int) -> int:
        there = self.world.add_route([self.up[src], self.down[dst]])
        back = self.world.add_route([self.up[dst], self.down[src]])
        return self.world.add_connection(End(self.process[src], self.free, self.free),
                                         End(self.process[dst], self.free, self.free),
                                         [there], [back])

    def _begin(self, channel: int) -> None:
        run = self.world.add_run(2, 1)
        assert self.world.advance(self.world.now_ns) == ("load", run)
        self.world.load(run, Stage([0], [1], [channel], [1 << 33], [1 << 14]))

    def start(self) -> None:
        """Let all flows begin, each in its time."""
        scene = self.scene
        chance = Random(scene.seed)
        late_ms = [flow * scene.apart_ms + (flow == scene.flows - 1) * scene.last_ms +
                   (chance.random() / 10 if scene.seed else 0) for flow in range(scene.flows)]
        for flow in sorted(range(scene.flows), key=late_ms.__getitem__):
            self.world.advance(round(late_ms[flow] * MS))
            for channel in (self.there[flow], *self.back[flow:flow + 1]):
                self._begin(channel)

    def frames(self) -> list[int]:
        """Count the frames that each flow has got through."""
        return [self.world.channel_frames(channel) for channel in self.there]


def jain_of(frames: list[int]) -> float:
    """Jain's index: 1 where all are equal."""
    return sum(frames) ** 2 / (len(frames) * sum(n * n for n in frames) or 1)


def run_scene(scene: Scene, intervals: int = INTERVALS) -> Result:
    """Run a scene."""
    port = Port(scene)
    world, bottleneck, ports = port.world, port.ports[0], len(port.ports)
    port.start()
    frame_ns = FRAME_BITS / scene.gbps
    step_ns = max(10 * MS, round(100 * scene.flows * frame_ns))
    counts, links, waiting = [port.frames()], [world.link_counts(bottleneck)], []
    for _ in range(intervals):
        for _ in range(20):
            world.advance(world.now_ns + step_ns // 20)
            waiting.append(world.link_counts(bottleneck).waiting_bytes)
        counts.append(port.frames())
        links.append(world.link_counts(bottleneck))
    jains = [jain_of([b - a for a, b in zip(before, after, strict=True)])
             for before, after in pairwise(counts)]
    got = [b - a for a, b in zip(counts[SETTLING], counts[-1], strict=True)]
    sent = links[-1].packets - links[SETTLING].packets
    dropped = links[-1].dropped - links[SETTLING].dropped
    settled = waiting[20 * SETTLING:]
    return Result(jain=min(jains[SETTLING:]), least=min(got) * scene.flows / sum(got),
                  use=sum(got) * frame_ns / ((intervals - SETTLING) * step_ns * ports),
                  lost=dropped / (sent + dropped),
                  queue_us=sum(settled) / len(settled) * 8e-3 / scene.gbps,
                  fair_ms=max((i + 1 for i, jain in enumerate(jains) if jain < 0.9),
                              default=0) * step_ns / MS)


TABLE = [Scene(2), Scene(16), Scene(64), Scene(16, apart_ms=5), Scene(64, apart_ms=5),
         Scene(16, last_ms=1000), Scene(16, base_us=10, base_last_us=200),
         Scene(64, base_us=10, base_last_us=200), Scene(16, both=True), Scene(64, both=True),
         Scene(60, hosts=1), Scene(16, mark_kb=160), Scene(64, mark_kb=160),
         Scene(64, mark_kb=160, apart_ms=2), Scene(16, mark_kb=160, last_ms=500),
         Scene(16, mark_kb=160, base_us=10, base_last_us=200), Scene(64, mark_kb=40),
         Scene(4, buffer_kb=200), Scene(16, buffer_kb=200), Scene(16, buffer_kb=200, apart_ms=5),
         Scene(64, buffer_kb=200), Scene(64, buffer_kb=200, apart_ms=2),
         Scene(16, buffer_kb=100), Scene(64, buffer_kb=100), Scene(64, buffer_kb=400)]


def print_table() -> None:
    """Print the table of docs/inside/packet.md: the worst of four seeds."""
    print("| scene | Jain's index | least share | used | lost | queue |\n"
          "|---|---|---|---|---|---|")
    for scene in TABLE:
        results = [run_scene(replace(scene, seed=seed)) for seed in range(4)]
        print(f"| `{scene}` | {min(result.jain for result in results):.2f} | "
              f"{min(result.least for result in results):.2f} | "
              f"{min(result.use for result in results):.3f} | "
              f"{100 * max(result.lost for result in results):.2f} % | "
              f"{max(result.queue_us for result in results):.0f} us |", flush=True)


def search() -> None:
    """Print every cell of a grid, and then those that are less fair or lose more than is wanted."""
    found = []
    for flows, (buffer_kb, mark_kb), base_last_us, apart_ms, seed in product(
            (2, 4, 8, 16, 32, 64), ((32_768, 0), (32_768, 160), (32_768, 40), (400, 0), (200, 0)),
            (0, 200), (0, 3), (1, 2)):
        scene = Scene(flows, buffer_kb=buffer_kb, mark_kb=mark_kb, base_last_us=base_last_us,
                      apart_ms=apart_ms, seed=seed)
        result = run_scene(scene)
        print(f"{scene!s:64} {result}", flush=True)
        if result.jain < 0.9 or result.lost > 0.005:
            found.append((result.jain, scene, result))
    print(f"\n{len(found)} are below 0.9 or lose more than 0.5 %:")
    for _, scene, result in sorted(found, key=lambda cell: cell[0]):
        print(f"{scene!s:64} {result}")


if __name__ == "__main__":
    search() if sys.argv[1:] == ["search"] else print_table()
