"""HARP's congestion control among its own kind: flows into one port of 25 Gb/s share it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from test_packet_network import Net

from sim.network.packet.world import Stage

MS = 1_000_000
RATE = 25e9


@dataclass
class Shares:
    """Frames that each flow got through in an interval."""

    frames: list[int]

    @property
    def jain(self) -> float:
        """Jain's index: 1 where all are equal (Jain, Chiu and Hawe, DEC-TR-301, 1984)."""
        return sum(self.frames) ** 2 / (len(self.frames) * sum(n * n for n in self.frames))


def share_port(flows: int, late_ms: int = 0) -> tuple[list[Shares], int]:
    """Shares in each 10 ms from when all have begun, over 100 ms; and the queue at the end."""
    net = Net(flows + 1, rate=RATE, buffer_bytes=32 << 20)
    world = net.world
    channels = [net.connect(source, flows) for source in range(flows)]
    for source, channel in enumerate(channels):
        world.advance(source * late_ms * MS)
        run = world.add_run(flows + 1, 1)
        assert world.advance(world.now_ns) == ("load", run)
        world.load(run, Stage([source], [flows], [channel], [1 << 33], [1 << 14]))
    intervals, before = [], [world.channel_frames(channel) for channel in channels]
    for _ in range(10):
        world.advance(world.now_ns + 10 * MS)
        now = [world.channel_frames(channel) for channel in channels]
        intervals.append(Shares([n - b for n, b in zip(now, before, strict=True)]))
        before = now
    assert world.counts().lost == 0
    return intervals, world.link_counts(net.down[flows]).waiting_bytes


@pytest.mark.parametrize("flows", [2, 4, 16, 64])
def test_flows_that_begin_together_are_fair_within_20_ms(flows: int) -> None:
    intervals, queue = share_port(flows)
    assert min(shares.jain for shares in intervals[2:]) > 0.9
    assert queue < 4 << 20
    sent = sum(sum(shares.frames) for shares in intervals) * (4096 + 110) * 8
    assert sent > 0.95 * RATE * 0.1


@pytest.mark.parametrize("flows", [2, 4, 16])
def test_flows_that_begin_late_get_their_share_within_50_ms(flows: int) -> None:
    intervals, _ = share_port(flows, late_ms=5)
    assert min(shares.jain for shares in intervals[5:]) > 0.9
