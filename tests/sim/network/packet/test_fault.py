"""Links of the packet network that lose what crosses them, or deliver it late."""

from __future__ import annotations

import pytest

from sim.network.packet.packet_world import End, LinkFaults, Stage, World

SEGMENT, HEADERS = 4096, 110
RATE = 10e9


class Line:
    """Two hosts, a switch between them, and one connection."""

    def __init__(self) -> None:
        self.world = world = World(seed=1, segment=SEGMENT, overhead=HEADERS - 44, slots=8,
                                   piece_bytes=512 << 10, unit_bytes=65536)
        up, down = ([world.add_link(RATE, 1e-6, source=source) for _ in range(2)]
                    for source in (-1, 0))
        world.share_buffers(1, 16 << 20, 1.0)
        self.data = up[0]
        free = world.add_chain([], [])
        self.server = world.add_chain([world.add_server()], [0.0])
        ends = [End(world.add_process(), free, chain) for chain in (free, self.server)]
        self.channel = world.add_connection(*ends, [world.add_route([up[0], down[1]])],
                                            [world.add_route([up[1], down[0]])])

    def transfer(self, nbytes: int) -> float:
        """Send so much, in pieces of 512 KiB, until all is there; seconds."""
        began_ns = self.world.now_ns
        run = self.world.add_run(2, 1)
        assert self.world.advance(began_ns) == ("load", run)
        self.world.load(run, Stage([0], [1], [self.channel], [nbytes], [nbytes >> 19]))
        assert self.world.advance() == ("done", run)
        return (self.world.now_ns - began_ns) * 1e-9


def test_a_share_is_lost_and_travels_again() -> None:
    line = Line()
    line.world.set_faults(line.data, LinkFaults(drop=0.02))
    line.transfer(64 << 20)
    counts = line.world.link_counts(line.data)
    assert counts.dropped / counts.packets == pytest.approx(0.02, rel=0.2)
    assert line.world.counts().again >= 0.9 * counts.dropped
    assert line.world.channel_frames(line.channel) == (64 << 20) // SEGMENT


def test_late_messages_are_not_lost() -> None:
    line = Line()
    line.world.set_faults(line.data, LinkFaults(late=0.05, late_s=50e-6))
    line.transfer(16 << 20)
    assert line.world.link_counts(line.data).dropped == 0
    assert line.world.channel_frames(line.channel) == (16 << 20) // SEGMENT


def test_frames_that_are_too_long_are_lost_until_they_are_shorter() -> None:
    line = Line()
    line.transfer(1 << 20)
    line.world.set_faults(line.data, LinkFaults(longest_bytes=1500))
    line.transfer(1 << 20)
    assert line.world.link_counts(line.data).dropped > 0
    before = line.world.link_counts(line.data)
    line.transfer(1 << 20)
    after = line.world.link_counts(line.data)
    assert after.bytes - before.bytes > (1 << 20)
    assert (after.bytes - before.bytes) / (after.packets - before.packets) < 1500


def test_a_receiver_that_becomes_slow_sets_the_pace() -> None:
    line = Line()
    line.transfer(1 << 20)
    line.world.set_pace(line.server, 0, 8 / 2e9)
    assert line.transfer(16 << 20) == pytest.approx((16 << 20) * 8 / 2e9, rel=0.05)
