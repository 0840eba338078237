"""Processes of hosts: what they send into NICs, and what they take in."""

from __future__ import annotations

import pytest

from sim.network.packet.packet_world import End
from tests.sim.network.packet.packet_net import SEGMENT, WIRE, Net


@pytest.mark.parametrize("ring", [4, 64])
def test_a_process_has_no_more_frames_in_its_nic_than_its_ring_holds(ring: int) -> None:
    net = Net(2)
    net.process[0] = net.world.add_process(ring)
    channel = net.connect(0, 1)
    net.move([(0, 1)], [channel], 4 << 20, pieces=8)
    assert (ring - 2) * WIRE < net.world.link_counts(net.up[0]).most_bytes <= ring * WIRE


def test_a_slow_receiver_takes_in_at_its_own_pace_and_loses_nothing() -> None:
    net, rate, nbytes = Net(2), 2e9, 8 << 20
    slow = net.world.add_chain([net.world.add_server()], [1 / rate])
    ends = [End(net.process[0], net.free, net.free), End(net.process[1], net.free, slow)]
    routes = [net.world.add_route([net.up[a], net.down[1 - a]]) for a in (0, 1)]
    channel = net.world.add_connection(*ends, routes[:1], routes[1:])
    assert net.move([(0, 1)], [channel], nbytes, pieces=16) == pytest.approx(nbytes / rate,
                                                                            rel=0.02)
    counts = net.world.counts()
    assert counts.data - counts.again == nbytes // SEGMENT
    assert counts.lost == 0


def test_channels_of_a_process_take_turns() -> None:
    """Two of one process, over one NIC: neither is through long before the other."""
    net, nbytes = Net(3), 4 << 20
    channels = [net.connect(0, 1), net.connect(0, 2)]
    net.move([(0, 1), (0, 2)], channels, nbytes, pieces=8)
    net.world.advance(net.world.now_ns + 1_000_000)
    alone_s = net.move([(0, 1)], channels[:1], nbytes, pieces=8)
    both_s = net.move([(0, 1), (0, 2)], channels, nbytes, pieces=8)
    assert both_s == pytest.approx(2 * alone_s, rel=0.1)
