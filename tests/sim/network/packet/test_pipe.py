"""Channels within a host."""

from __future__ import annotations

import pytest

from tests.sim.network.packet.packet_net import Net


def test_pieces_within_a_host_share_a_chain() -> None:
    net = Net(2)
    chain = net.world.add_chain([net.world.add_server()], [1 / 10e9])
    pipes = [net.world.add_pipe(chain, 2e-6) for _ in range(2)]
    nbytes = 4 << 20
    took_s = net.move([(0, 1), (1, 0)], pipes, nbytes, pieces=8)
    assert took_s == pytest.approx(2 * nbytes / 10e9 + 2e-6, rel=0.01)
