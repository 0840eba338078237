"""The packet network against closed forms: what one flow takes, how flows share, what queues do."""

from __future__ import annotations

import pytest

from tests.sim.network.packet.packet_net import Net, serialised


def test_long_message_takes_the_line_rate() -> None:
    net = Net(2)
    channel = net.connect(0, 1)
    net.move([(0, 1)], [channel], 4 << 20, pieces=8)
    nbytes = 64 << 20
    took_s = net.move([(0, 1)], [channel], nbytes, pieces=128)
    assert took_s == pytest.approx(serialised(nbytes, net.rate), rel=0.03)
    assert took_s > serialised(nbytes, net.rate)


def test_same_calls_give_the_same_run() -> None:
    def congested() -> tuple[float, tuple[int, ...]]:
        net = Net(9, buffer_bytes=256 << 10, mark_bytes=128 << 10)
        pairs = [(source, 8) for source in range(8)]
        took_s = net.move(pairs, [net.connect(*pair) for pair in pairs], 2 << 20, pieces=4)
        return took_s, tuple(net.world.counts())

    first = congested()
    assert first[1][3] > 0  # packets were lost
    assert congested() == first
