"""Connections of the packet network that nothing moves on."""

from __future__ import annotations

from tests.sim.network.packet.packet_net import ETHERNET_LEAST, SEGMENT, US, Net


def test_connection_that_is_closed_while_idle_is_opened_by_the_next_piece() -> None:
    kept, closed = Net(3), Net(3, idle_connections=1)
    took_s = []
    for net in (kept, closed):
        channels = [net.connect(0, 1), net.connect(0, 2)]
        for channel, dst in zip(channels, (1, 2), strict=True):
            net.move([(0, dst)], [channel], SEGMENT)
            net.world.advance(net.world.now_ns + 100_000)  # acknowledged, too
        took_s.append(net.move([(0, 1)], channels[:1], SEGMENT))
        assert net.world.channel_frames(channels[0]) == 2
    handshake_s = 2 * (2 * (ETHERNET_LEAST * 8 / kept.rate + US))
    assert took_s[1] > took_s[0] + handshake_s  # FIRST and ACCEPT
