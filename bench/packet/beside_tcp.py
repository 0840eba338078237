"""What a HARP connection gets beside kernel TCP in one queue, over packets: a table.

``python bench/packet/beside_tcp.py [SEEDS [CONGESTION]]``: the least and the mean over the seeds of
HARP's rate by its fair share, for the queues and neighbours of docs/session.md. ``late``: TCP was
there first. TCP is that of fidelity packet, with Linux's bursts and ACKs; hosts cost nothing. With
a congestion control of TCP a flow of it takes HARP's place, beside BBR: what one gets there that
gives way to loss as HARP does.
"""

from __future__ import annotations

import sys
from itertools import product
from statistics import mean

from sim.network.packet.world import End, Stage, Tcp, World

MS = 1_000_000
LINK_S = 25e-6
"""Of four links, for an empty path of 100 us."""
TCP_WIRE, HARP_WIRE = 1448 + 90, 1408 + 110
QUEUES = ((1e9, 1_000_000, 10_000), (10e9, 2_000_000, 4_000))
"""Rate, buffer, and how long a run is, ms."""


class Port:
    """Hosts that send to one port, each over a link of the same rate."""

    def __init__(self, bps: float, buffer_bytes: int, seed: int) -> None:
        self.world = World(seed=seed, segment=1408, overhead=66, slots=8, piece_bytes=512 << 10,
                           unit_bytes=65536)
        self.bps = bps
        self.down = self.world.add_link(bps, LINK_S, source=0)
        self.back = self.world.add_link(bps, LINK_S, target=0)
        # A port may have as much as is free, which is half of all when it alone has some.
        self.world.share_buffers(1, 2 * buffer_bytes, 1.0)
        self._free = self.world.add_chain([], [])
        self._to = self.world.add_process()

    def send(self, congestion: str | None) -> int:
        """Begin a flow without end, of TCP if a congestion control is named; its channel."""
        world = self.world
        up, answers = world.add_link(self.bps, LINK_S, target=0), world.add_link(
            self.bps, LINK_S, source=0)
        source = End(world.add_process(), self._free, self._free)
        target = End(self._to, self._free, self._free)
        there, back = world.add_route([up, self.down]), world.add_route([self.back, answers])
        channel = (world.add_connection(source, target, [there], [back]) if congestion is None
                   else world.add_tcp(source, target, [there], [back],
                                      Tcp(1448, 90, congestion)))
        run = world.add_run(2, 1)
        world.advance(world.now_ns)
        world.load(run, Stage([0], [1], [channel], [1 << 36], [1 << 17]))
        return channel


def share(queue: tuple[float, int, int], ours_is: str | None, congestion: str, flows: int,
          late: bool, seed: int) -> float:
    """HARP's rate by the fair share, over the last two thirds of a run; or TCP's in its place."""
    bps, buffer_bytes, run_ms = queue
    port = Port(bps, buffer_bytes, seed)
    ours = -1 if late else port.send(ours_is)
    for _ in range(flows):
        port.world.advance(port.world.now_ns + (10 + seed) * MS)
        port.send(congestion)
    if late:
        port.world.advance(run_ms // 10 * MS)
        ours = port.send(ours_is)
    port.world.advance(run_ms // 3 * MS)
    before, from_ns = port.world.channel_frames(ours), port.world.now_ns
    port.world.advance(run_ms * MS)
    frames = port.world.channel_frames(ours) - before
    wire = HARP_WIRE if ours_is is None else TCP_WIRE
    return frames * wire * 8 / ((port.world.now_ns - from_ns) * 1e-9) / bps * (flows + 1)


def main() -> None:
    """Print a line a cell."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    ours_is = sys.argv[2] if len(sys.argv) > 2 else None
    beside = ("cubic", "bbr", "dctcp") if ours_is is None else ("bbr",)
    for queue, congestion, flows, late in product(QUEUES, beside, (1, 4), (False, True)):
        shares = [share(queue, ours_is, congestion, flows, late, seed)
                  for seed in range(1, seeds + 1)]
        print(f"{queue[0] / 1e9:3.0f} Gb/s {queue[1] / 1e6:.0f} MB  {flows} {congestion:5s} "
              f"{'late' if late else 'early':5s}  least {min(shares):.2f}  mean {mean(shares):.2f}",
              flush=True)


if __name__ == "__main__":
    main()
