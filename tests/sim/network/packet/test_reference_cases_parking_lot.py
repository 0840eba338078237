"""One flow over several links in a row, beside one flow over each link alone: nobody starves."""

from __future__ import annotations

import pytest

from sim.network.packet.reference_cases import Host, Net
from tests.support.levels import long_except

MS = 10**6
LINK_BPS, HOST_BPS = 10e9, 100e9
BUFFER_BYTES, SEGMENT_BYTES, FRAME_BYTES = 32 << 20, 8832, 8832 + 110


def shares(links: int, latency_s: float, after_ms: int, over_ms: int) -> list[float]:
    """Give what the long flow and each short one have of a link, a while after they began."""
    net = Net(links + 1, BUFFER_BYTES, SEGMENT_BYTES)
    there = [net.world.add_link(LINK_BPS, latency_s, source=at, target=at + 1)
             for at in range(links)]
    back = [net.world.add_link(LINK_BPS, latency_s, source=at + 1, target=at)
            for at in range(links)]

    def host(switch: int) -> Host:
        return net.host(switch, HOST_BPS, latency_s)
    flows = [net.send(host(0), host(links), None, there, back[::-1])]
    flows += [net.send(host(at), host(at + 1), None, [there[at]], [back[at]])
              for at in range(links)]
    net.world.advance(net.world.now_ns + after_ms * MS)
    return [frames * FRAME_BYTES * 8 / (over_ms * 1e-3) / LINK_BPS
            for frames in net.frames(flows, over_ms * MS)]


@pytest.mark.parametrize(("latency_s", "after_ms"), long_except(
    [(1e-6, 1000), (2e-6, 1900), (5e-6, 50), (5e-6, 1000), (20e-6, 1000)],
    (2e-6, 1900), (5e-6, 50)))
def test_nobody_starves_where_a_flow_crosses_two_queues(latency_s: float, after_ms: int) -> None:
    """Law: a flow's rate falls with the square of its queues' delay, so 1/5 and 4/5 of a link.

    The long flow took the queues for others', competed, and had 0.97 and more after a second.
    """
    long, *short = shares(2, latency_s, after_ms, 100)
    assert long > 0.1
    assert min(short) > 0.5
    assert all(0.95 < long + one < 1.01 for one in short)
