"""Servers of hosts: one thing after the other, in chains, with tokens."""

from __future__ import annotations

import pytest

from tests.sim.network.packet.packet_net import Net


def test_slow_server_of_a_host_sets_the_pace() -> None:
    net = Net(2)
    server = net.world.add_server()
    chain = net.world.add_chain([server], [1 / 5e9])
    channel = net.connect(0, 1, chain)
    nbytes = 16 << 20
    assert net.move([(0, 1)], [channel], nbytes, pieces=32) == pytest.approx(nbytes / 5e9, rel=0.02)


def test_two_processes_share_a_server() -> None:
    net = Net(3)
    server = net.world.add_server()
    chain = net.world.add_chain([server], [1 / 5e9])
    channels = [net.connect(0, 2, chain), net.connect(1, 2, chain)]
    nbytes = 8 << 20
    took_s = net.move([(0, 2), (1, 2)], channels, nbytes, pieces=16)
    assert took_s == pytest.approx(2 * nbytes / 5e9, rel=0.02)


def test_token_bucket_bursts_while_it_has_tokens() -> None:
    net = Net(2)
    base, burst, tokens, nbytes = 1e9, 5e9, 4 << 20, 16 << 20
    bucket = net.world.add_bucket(1 / base, base / burst, tokens)
    channel = net.connect(0, 1, net.world.add_chain([bucket], [1 / base]))
    first_s = tokens / (burst - base)
    rest_s = (nbytes - burst * first_s) / base
    assert net.move([(0, 1)], [channel], nbytes, pieces=32) == pytest.approx(first_s + rest_s,
                                                                            rel=0.01)
