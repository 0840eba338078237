"""Hosts on one switch in the packet network, and closed forms of what they send."""

from __future__ import annotations

from sim.network.packet.packet_world import End, Stage, World

SEGMENT, OVERHEAD, HARP = 4096, 66, 44
ETHERNET_LEAST = 84
WIRE = SEGMENT + HARP + OVERHEAD
US = 1e-6


class Net:
    """Hosts on one switch; every link has one rate and a latency of 1 us."""

    def __init__(self, hosts: int, rate: float = 100e9, seed: int = 1, slots: int = 8,
                 buffer_bytes: int = 0, idle_connections: int = 4096, **port: int) -> None:
        self.world = World(seed=seed, segment=SEGMENT, overhead=OVERHEAD,
                           slots=slots, piece_bytes=4 << 20, unit_bytes=65536,
                           idle_connections=idle_connections)
        self.rate = rate
        self.up = [self.world.add_link(rate, US) for _ in range(hosts)]
        self.down = [self.world.add_link(rate, US, source=0, **port) for _ in range(hosts)]
        if buffer_bytes:
            self.world.share_buffers(1, buffer_bytes, 1.0)
        self.free = self.world.add_chain([], [])
        self.process = [self.world.add_process() for _ in range(hosts)]

    def connect(self, src: int, dst: int, chain: int | None = None, **costs: float) -> int:
        there = self.world.add_route([self.up[src], self.down[dst]])
        back = self.world.add_route([self.up[dst], self.down[src]])
        send = self.free if chain is None else chain
        return self.world.add_connection(End(self.process[src], send, self.free),
                                         End(self.process[dst], self.free, self.free),
                                         [there], [back], **costs)

    def move(self, pairs: list[tuple[int, int]], channels: list[int], nbytes: int,
             pieces: int = 1) -> float:
        """Move ``nbytes`` on each channel at once; seconds."""
        start_ns = self.world.now_ns
        ranks = 1 + max(max(pair) for pair in pairs)
        run = self.world.add_run(ranks, 1)
        assert self.world.advance() == ("load", run)
        count = len(pairs)
        self.world.load(run, Stage([a for a, _ in pairs], [b for _, b in pairs], channels,
                                   [nbytes] * count, [pieces] * count))
        assert self.world.advance() == ("done", run)
        return (self.world.now_ns - start_ns) * 1e-9


def serialised(nbytes: int, rate: float) -> float:
    """Seconds that a message keeps a link."""
    frames, rest = divmod(nbytes, SEGMENT)
    return (frames * WIRE + (rest and rest + HARP + OVERHEAD)) * 8 / rate
