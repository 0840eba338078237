"""Pieces as a stack takes them up, and when."""

from __future__ import annotations

import pytest

from tests.sim.network.packet.packet_net import SEGMENT, US, WIRE, Net


def test_delay_and_message_cost_come_before_the_first_frame() -> None:
    net = Net(2)
    channel = net.connect(0, 1, delay_s=10e-6, message_s=0.5e-6)
    net.move([(0, 1)], [channel], 1)
    assert net.move([(0, 1)], [channel], SEGMENT) == pytest.approx(
        2 * (WIRE * 8 / net.rate + US) + 11e-6, abs=2e-9)  # a message costs either end
