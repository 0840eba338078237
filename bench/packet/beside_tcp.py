"""HARP's share of one queue beside TCP, over packets.

A row is a queue and its other flows. Its figures are HARP's rate over its fair share, least and
mean of the seeds. ``late``: TCP was there first. TCP is fidelity packet's, with Linux's bursts and
ACKs; hosts cost nothing. With ``--congestion`` a flow of TCP takes HARP's place, beside BBR: it
shows the share of a controller that gives way to loss as HARP does. docs/inside/packet.md keeps the
tables.
"""

from __future__ import annotations

from itertools import product
from statistics import mean
from typing import TYPE_CHECKING

import click

from bench.rows import Row, by_id
from bench.subject import Subject
from sim.network.packet.packet_world import End, Stage, Tcp, World

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.rows import Result

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


def measure(rows: Sequence[Row], seeds: int, ours_is: str | None) -> Iterator[Result]:
    """Run the cells that are chosen."""
    for row in rows:
        if ours_is is not None and "bbr" not in row.id:
            continue
        shares = [row.function(ours_is, seed) for seed in range(1, seeds + 1)]
        yield {"id": row.id, "value": min(shares), "unit": "of the fair share",
               "mean": mean(shares), "ok": True}


def _row(queue: tuple[float, int, int], congestion: str, flows: int, late: bool) -> Row:
    when = "late" if late else "early"
    return Row(f"{queue[0] / 1e9:.0f}G-{flows}-{congestion}-{when}",
               f"{queue[0] / 1e9:.0f} Gb/s, {queue[1] / 1e6:.0f} MB, beside {flows} "
               f"{congestion.upper()}, {when}",
               lambda ours_is, seed: share(queue, ours_is, congestion, flows, late, seed),
               reference="fair share")


ROWS = by_id(_row(*cell) for cell in product(QUEUES, ("cubic", "bbr", "dctcp"), (1, 4),
                                             (False, True)))
SUBJECT = Subject(__doc__ or "", ROWS, measure, [
    click.Option(["--seeds"], default=3, show_default=True, type=click.IntRange(1)),
    click.Option(["--congestion", "ours_is"], help="TCP's congestion control in HARP's place."),
], "", lambda row: (f"{ROWS[row['id']].what:43} least {row['value']:.2f}  mean "
                    f"{row['mean']:.2f}"))
