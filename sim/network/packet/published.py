"""The packet network's kernel TCP against what others measured and simulated, where all is told.

Each case builds the network that its source describes; nothing is fitted. What a source does not
tell stands in the case's note.
"""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING

from sim.network.packet.scene import Net
from sim.network.packet.world import Tcp
from sim.records.published import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

MS = 1_000_000
MSS = 1448
"""Of Ethernet's 1,500 B with TCP's time stamps."""
ETHERNET = Tcp(MSS, 90, "dctcp")
POINT_TO_POINT = Tcp(MSS, 54, "dctcp")
"""ns-3's point-to-point links add 2 B, and nothing between frames."""
SIGCOMM = ("Alizadeh et al., DCTCP, SIGCOMM 2010, figure 17, as ns-3's examples/tcp/"
           "dctcp-example.cc repeats it")
NS3 = "ns-3 examples/tcp/tcp-validation.cc, case {}"
MULTI_HOP = ("1 Gb/s a host and 10 Gb/s between the switches, 10 us a link as ns-3 has them; marks "
             "above 20 and 65 packets; no buffer fills. Their sums fill the lines, so headers "
             "count")
BURSTS = ("ours is the share that is marked: Linux sends four segments at once at 50 Mb/s, as many "
          "as the threshold is, where ns-3 sends one after the other")
FULL = "of a segment's 1,502 B on the link, 48.2 Mb/s are payload at most"


def share_two_bottlenecks() -> Iterator[Row]:
    """Figure 17 of the DCTCP paper: flows that cross one bottleneck, or two."""
    net, latency_s, slow, fast = Net(2, 4_000_000), 10e-6, 20 * 1500, 65 * 1500
    there = net.world.add_link(10e9, latency_s, source=0, target=1, mark_bytes=fast)
    back = net.world.add_link(10e9, latency_s, source=1, target=0, mark_bytes=fast)
    shared = net.host(1, 1e9, latency_s, slow)
    flows = []
    for group in range(40):  # 10 of S1, 20 of S2, 10 of S3
        source = net.host(int(group >= 30), 1e9, latency_s, slow)
        crosses = ([there], [back]) if group < 30 else ([], [])
        target = net.host(1, 1e9, latency_s, slow) if 10 <= group < 30 else shared
        flows.append(net.send(source, target, ETHERNET, *crosses))
        net.world.advance(net.world.now_ns + 5 * MS)
    net.world.advance(net.world.now_ns + 300 * MS)
    bits = (MSS + ETHERNET.headers) * 8
    rates = [count * bits / 0.3 / 1e6 for count in net.frames(flows, 300 * MS)]
    groups = (("S1, over both", rates[:10], 46), ("S2, over 10 Gb/s", rates[10:30], 475),
              ("S3, over 1 Gb/s", rates[30:], 54))
    for name, some, theirs in groups:
        yield Row("two bottlenecks, 40 flows", name, mean(some), theirs, theirs, "Mb/s",
                  SIGCOMM, MULTI_HOP)


def fill_slow_link(rtt_ms: int, seconds: int) -> list[tuple[float, float]]:
    """One DCTCP flow: Mb/s of payload, and the share that is marked, second by second."""
    net = Net(2, 32_000_000)
    half_s = rtt_ms / 2 * 1e-3
    there = net.world.add_link(50e6, half_s, source=0, target=1, mark_bytes=6250)  # 1 ms
    back = net.world.add_link(50e6, half_s, source=1, target=0)
    source, target = (net.host(switch, 1e9, 1e-6) for switch in range(2))
    flow = net.send(source, target, POINT_TO_POINT, [there], [back])
    found, before = [], net.world.link_counts(there)
    for _ in range(seconds):
        (count,) = net.frames([flow], 1000 * MS)
        now = net.world.link_counts(there)
        found.append((count * MSS * 8 / 1e6,
                      (now.marked - before.marked) / (now.packets - before.packets)))
        before = now
    return found


def follow_ns3() -> Iterator[Row]:
    """The bounds in which ns-3 says that its DCTCP lies; its flows begin at 5 s."""
    rates, shares = zip(*fill_slow_link(10, 10)[2:], strict=True)
    case, source = "one flow, 50 Mb/s, 10 ms", NS3.format("dctcp-10ms")
    yield Row(case, "goodput after 7 s", mean(rates), 48, 49, "Mb/s", source, FULL)
    yield Row(case, "alpha after 7 s", mean(shares), 0.06, 0.085, "", source, BURSTS)
    rates, shares = zip(*fill_slow_link(80, 35), strict=True)
    case, source = "one flow, 50 Mb/s, 80 ms", NS3.format("dctcp-80ms")
    yield Row(case, "goodput before 14 s", max(rates[:9]), 0, 20, "Mb/s", source)
    yield Row(case, "goodput before 30 s", max(rates[:25]), 0, 48, "Mb/s", source)
    yield Row(case, "goodput after 32 s", mean(rates[27:]), 47.5, 48.5, "Mb/s", source)
    yield Row(case, "alpha from 11 to 30 s", max(shares[6:25]), 0, 0.01, "", source)
    yield Row(case, "alpha after 34 s", mean(shares[29:]), 0.015, 0.025, "", source, BURSTS)


def published_rows() -> list[Row]:
    """All cases."""
    return [*share_two_bottlenecks(), *follow_ns3()]
