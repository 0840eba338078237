"""Caps that drop what exceeds them."""

from __future__ import annotations

import pytest

from sim.network.packet.packet_world import End
from tests.sim.network.packet.packet_net import SEGMENT, Net


@pytest.mark.parametrize("way", ["out", "in"])
def test_policer_lets_its_rate_and_its_bucket_through_and_drops_the_rest(way: str) -> None:
    net = Net(2)
    rate, tokens, nbytes = 1e9, 1 << 20, 16 << 20
    policer = net.world.add_policer(1 / rate, tokens)
    chain = net.world.add_chain([policer], [1 / rate])
    ends = [End(process, net.free, net.free) for process in net.process]
    ends = [ends[0]._replace(send_chain=chain) if way == "out" else ends[0],
            ends[1]._replace(receive_chain=chain) if way == "in" else ends[1]]
    routes = [net.world.add_route([net.up[a], net.down[1 - a]]) for a in (0, 1)]
    channel = net.world.add_connection(*ends, routes[:1], routes[1:])
    took_s = net.move([(0, 1)], [channel], nbytes, pieces=32)
    counts = net.world.counts()
    assert counts.policed > 0
    assert counts.lost == counts.policed
    assert counts.data * SEGMENT <= took_s * rate + tokens + SEGMENT
    assert (nbytes - tokens) / rate <= took_s < 2 * nbytes / rate


def test_policer_drops_nothing_below_its_rate() -> None:
    net = Net(2)
    slower, policer = net.world.add_server(), net.world.add_policer(1 / 1.25e9, 16 << 10)
    chain = net.world.add_chain([slower, policer], [1 / 1.2e9, 1 / 1.25e9])
    channel = net.connect(0, 1, chain)
    net.move([(0, 1)], [channel], 8 << 20, pieces=16)
    assert net.world.counts().policed == 0
