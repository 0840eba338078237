"""Links of the packet network: queues, marks, drops."""

from __future__ import annotations

import pytest

from sim.network.packet.packet_world import ConnectionEndedError, Stage
from tests.sim.network.packet.packet_net import SEGMENT, US, WIRE, Net, serialised


def test_single_frame_takes_serialisation_on_each_link_and_latency() -> None:
    net = Net(2)
    channel = net.connect(0, 1)
    net.move([(0, 1)], [channel], 1)  # handshake and credit
    assert net.move([(0, 1)], [channel], SEGMENT) == pytest.approx(
        2 * (WIRE * 8 / net.rate + US), abs=2e-9)


def test_acks_wait_at_ports_of_switches_unless_they_go_first() -> None:
    """Two hosts send to a third one, and what acknowledges its own data comes by that queue.

    The sender's control leaves what ACKs wait out of its delay, so that it loses little by it.
    """
    took_s = []
    for first in (False, True):
        net = Net(4, rate=25e9, buffer_bytes=4 << 20)
        if first:
            net.world.put_acks_first()
        pairs = [(0, 2), (1, 2), (2, 3)]
        channels = [net.connect(*pair) for pair in pairs]
        for channel, (src, dst) in zip(channels[:2], pairs[:2], strict=True):
            run = net.world.add_run(4, 1)
            assert net.world.advance(net.world.now_ns) == ("load", run)
            net.world.load(run, Stage([src], [dst], [channel], [1 << 36], [1 << 17]))
        net.world.advance(20_000_000)
        took_s.append(net.move(pairs[2:], channels[2:], 32 << 20, pieces=64))
    alone_s = serialised(32 << 20, 25e9)
    assert took_s[1] < took_s[0] < 1.05 * took_s[1]
    assert took_s[1] < 1.05 * alone_s


@pytest.mark.parametrize("flows", [2, 4, 8])
def test_flows_into_one_port_share_it(flows: int) -> None:
    net = Net(flows + 1, buffer_bytes=4 << 20)
    pairs = [(source, flows) for source in range(flows)]
    channels = [net.connect(*pair) for pair in pairs]
    nbytes = 8 << 20
    took_s = net.move(pairs, channels, nbytes, pieces=16)
    assert took_s == pytest.approx(flows * serialised(nbytes, net.rate), rel=0.05)


def test_port_marks_above_its_threshold_and_drops_above_its_buffer() -> None:
    marking = Net(5, buffer_bytes=16 << 20, mark_bytes=64 << 10)
    dropping = Net(5, buffer_bytes=64 << 10)
    for net in (marking, dropping):
        pairs = [(source, 4) for source in range(4)]
        net.move(pairs, [net.connect(*pair) for pair in pairs], 1 << 20)
    marked = marking.world.link_counts(marking.down[4])
    dropped = dropping.world.link_counts(dropping.down[4])
    assert marked.marked > 0
    assert marked.dropped == 0
    assert dropped.marked == 0
    assert dropped.dropped > 0
    assert dropped.most_bytes <= (32 << 10) + WIRE  # alpha of 1: half of it for one port alone
    assert dropping.world.counts().again > 0.9 * dropped.dropped  # some were no data


def test_every_byte_crosses_every_link_once() -> None:
    net = Net(2)
    nbytes = 1 << 20
    net.move([(0, 1)], [net.connect(0, 1)], nbytes, pieces=2)
    data = nbytes // SEGMENT
    for link in (net.up[0], net.down[1]):
        counts = net.world.link_counts(link)
        others = counts.packets - data  # handshake, and a probe as long as a full frame
        assert 0 < others < 10
        assert data * WIRE < counts.bytes < (data + others) * WIRE
    assert net.world.counts().data == data


def test_link_that_is_down_for_good_ends_the_connection() -> None:
    net = Net(2)
    channel = net.connect(0, 1)
    net.move([(0, 1)], [channel], 1)
    net.world.set_rate(net.down[1], 0)
    with pytest.raises(ConnectionEndedError, match="silent for too long"):
        net.move([(0, 1)], [channel], 1)


def test_link_that_comes_back_loses_no_byte() -> None:
    net = Net(2)
    channel = net.connect(0, 1)
    net.move([(0, 1)], [channel], 1)
    run = net.world.add_run(2, 1)
    net.world.advance()
    net.world.load(run, Stage([0], [1], [channel], [32 << 20], [64]))
    net.world.advance(net.world.now_ns + 200_000)
    net.world.set_rate(net.down[1], 0)
    net.world.advance(net.world.now_ns + 500_000)
    net.world.set_rate(net.down[1], net.rate)
    assert net.world.advance() == ("done", run)
    assert net.world.counts().lost > 0
    assert net.world.counts().again > 0
