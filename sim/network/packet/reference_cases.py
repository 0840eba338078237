"""Cases of the packet network with a closed form or a published result.

Closed forms are those of empty paths, queues, max-min shares and TCP; the formulas here take only
the frame's sizes from the simulator, and each row has its source. `sim.validation.closed_forms` has
those of collectives and caps. Published results are measurements and simulations of kernel TCP with
a complete description: each case builds the network of its source, and a note names what the source
leaves open. Nothing is fitted.

A `Net` is a small network built by hand: switches, hosts with processes that cost no time, and
flows between them.
"""

from __future__ import annotations

from math import ceil, log2, sqrt
from random import Random
from statistics import mean
from typing import TYPE_CHECKING, NamedTuple

from harp.collectives.window import NCCL_WINDOW
from sim.network.packet.assumptions import UNIT_BYTES
from sim.network.packet.packet_world import NIC, End, LinkFaults, Stage, Tcp, World
from sim.records.reference_rows import JUMBO_HARP, JUMBO_TCP, Row, Wire, time_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


SEGMENT, OVERHEAD = 1408, 66
"""Of HARP's frames, where nothing else is asked for: payload, and Ethernet, IP and UDP."""


class Host(NamedTuple):
    """Its links, and the end of its connections."""

    up: int
    down: int
    end: End


class Net:
    """Hosts under switches; only some of the ports are slow."""

    def __init__(self, switches: int, buffer_bytes: int, segment: int = SEGMENT) -> None:
        self.world = World(seed=1, segment=segment, overhead=OVERHEAD, slots=NCCL_WINDOW.slots,
                           piece_bytes=4 << 20, unit_bytes=UNIT_BYTES)
        self.world.share_buffers(switches, buffer_bytes, 1.0)
        self._free = self.world.add_chain([], [])

    def host(self, switch: int, bps: float, latency_s: float, mark_bytes: int = 0) -> Host:
        """Add a host."""
        world = self.world
        return Host(world.add_link(bps, latency_s, source=NIC, target=switch),
                    world.add_link(bps, latency_s, source=switch, target=NIC,
                                   mark_bytes=mark_bytes),
                    End(world.add_process(), self._free, self._free))

    def connect(self, source: Host, target: Host, tcp: Tcp | None = None,
                there: Sequence[int] = (), back: Sequence[int] = ()) -> int:
        """Add a channel over these links between switches: of kernel TCP, or of HARP."""
        world = self.world
        routes = ([world.add_route([source.up, *there, target.down])],
                  [world.add_route([target.up, *back, source.down])])
        if tcp is not None:
            return world.add_tcp(source.end, target.end, *routes, tcp)
        return world.add_connection(source.end, target.end, *routes)

    def begin(self, channel: int, nbytes: int, pieces: int) -> int:
        """Send so much on a channel from now on; the run's number."""
        run = self.world.add_run(2, 1)
        self.world.advance(self.world.now_ns)
        self.world.load(run, Stage([0], [1], [channel], [nbytes], [pieces]))
        return run

    def send(self, source: Host, target: Host, tcp: Tcp | None = None, there: Sequence[int] = (),
             back: Sequence[int] = ()) -> int:
        """Begin a flow without end; its channel."""
        channel = self.connect(source, target, tcp, there, back)
        self.begin(channel, 1 << 36, 1 << 17)
        return channel

    def frames(self, channels: Sequence[int], for_ns: int) -> list[int]:
        """Frames that get through on each channel in a while."""
        before = [self.world.channel_frames(channel) for channel in channels]
        self.world.advance(self.world.now_ns + for_ns)
        return [self.world.channel_frames(channel) - count
                for channel, count in zip(channels, before, strict=True)]


MS = 1_000_000
MIB = 1 << 20
KUROSE = "Kurose and Ross, Computer Networking, section 1.4"
BERTSEKAS = "Bertsekas and Gallager, Data Networks, 2nd ed., section 6.5.2"
KLEINROCK = "Pollaczek and Khinchine; Kleinrock, Queueing Systems I, section 5.6"
SLOW_START = "RFC 6928, RFC 5681; Cardwell, Savage and Anderson, INFOCOM 2000"
RFC9438 = "RFC 9438, section 5.2 and table 1"
AT_RANDOM = ("the form is for losses evenly apart; the same law with random ones, packet by "
             "packet, gives 44 and 216 segments (tests/sim/validation/test_packet_page.py)")
BBR = "Cardwell et al., BBR, ACM Queue 2016: no heed to loss, and PROBE_RTT of 200 ms each 10 s"
MARK_BYTES = 97_500
"""65 packets of 1,500 B (DCTCP, SIGCOMM 2010), at 10 Gb/s."""
QUEUES_ADD = ("ends see what waits on their whole way, HARP's also before their own port, so that "
              "a flow over two full lines gives way twice: no end-to-end control is max-min there "
              "(Kelly, Maulloo and Tan, JORS 1998)")
HOP_S = 1e-6
"""Latency of a link."""
CUBIC = Tcp(*JUMBO_TCP)
STACKS = (("HARP", JUMBO_HARP, None), ("kernel TCP", JUMBO_TCP, CUBIC))


def path_rows() -> list[Row]:
    """All rows."""
    return [*cross_empty_path(), *wait_for_random_frames(), *share_bottlenecks(),
            *start_slowly(), *lose_at_random()]


def finish(net: Net, channel: int, nbytes: int, pieces: int = 1) -> float:
    """Seconds that a message takes."""
    start_ns = net.world.now_ns
    net.begin(channel, nbytes, pieces)
    net.world.advance()
    took_s = (net.world.now_ns - start_ns) * 1e-9
    net.world.advance(net.world.now_ns + MS)  # acknowledged
    return took_s


def cross_empty_path() -> Iterator[Row]:
    """One frame, eight, and many, over links of 10, 25 and 100 Gb/s."""
    rates, latencies_s = (10e9, 25e9, 100e9), (5e-6, 2e-6, 1e-6)
    for stack, wire, tcp in STACKS:
        net = Net(2, 32 << 20, JUMBO_HARP.payload)
        middle = [net.world.add_link(rates[1], latencies_s[1], source=at, target=1 - at)
                  for at in (0, 1)]
        near, far = net.host(0, rates[0], latencies_s[0]), net.host(1, rates[2], latencies_s[2])
        channel = net.connect(near, far, tcp, middle[:1], middle[1:])
        finish(net, channel, MIB)  # opens it
        frame_s = [8 * wire.whole / bps for bps in rates]
        for frames in (1, 8):
            wanted_s = sum(frame_s) + (frames - 1) * max(frame_s) + sum(latencies_s)
            yield time_row(f"{stack}: {frames} frame{'s' * (frames > 1)} over three links",
                           "sum of L / R, (n - 1) L / least R",
                           finish(net, channel, frames * wire.payload), wanted_s, KUROSE)
        wanted_s = 8 * wire.on_line(64 * MIB) / rates[0] + sum(frame_s[1:]) + sum(latencies_s)
        yield time_row(f"{stack}: 64 MiB over three links", "bytes by the slowest rate",
                       finish(net, channel, 64 * MIB, 128), wanted_s, KUROSE)


def wait_for_random_frames() -> Iterator[Row]:
    """Segments of many hosts that come at random at one port; none sends two before an ACK."""
    rate_bps, sources, frames = 10e9, 64, 80_000
    service_s = 8 * JUMBO_TCP.whole / rate_bps
    for rho in (0.5, 0.8):
        net = Net(1, 32 << 20)
        target = net.host(0, rate_bps, HOP_S)
        idle = [net.connect(net.host(0, 100 * rate_bps, HOP_S), target, CUBIC)
                for _ in range(sources)]
        empty_s = [(finish(net, channel, 1), finish(net, channel, JUMBO_TCP.payload))[1]
                   for channel in idle]
        waits_s = send_at_random(net, idle, service_s / rho, frames)
        yield time_row(f"kernel TCP: segments at random, load {rho:g}",
                       "M/D/1: rho L / 2 (1 - rho) R",
                       mean(waits_s) - min(empty_s), rho / (2 * (1 - rho)) * service_s, KLEINROCK)


def send_at_random(net: Net, idle: list[int], apart_s: float, frames: int) -> list[float]:
    """Send single segments as a Poisson process, each on an idle channel; their times."""
    random, world = Random(1), net.world
    at_ns = float(world.now_ns)
    begun: dict[int, tuple[int, int]] = {}
    took_s: list[float] = []
    while len(took_s) < frames:
        begun[world.add_run(2, 1)] = world.now_ns, idle.pop(0)
        at_ns += random.expovariate(1 / apart_s) * 1e9
        while (event := world.advance(round(at_ns)))[0] != "time":
            what, run = event
            start_ns, channel = begun[run]
            if what == "load":
                world.load(run, Stage([0], [1], [channel], [JUMBO_TCP.payload], [1]))
            else:
                took_s.append((world.now_ns - start_ns) * 1e-9)
                idle.append(channel)
    return took_s


class Sends(NamedTuple):
    """A flow without end over a chain of links."""

    first: int
    """Links that it crosses, from this one on."""
    links: int
    bps: float = 100e9
    """Of its host's port."""


def share_bottlenecks() -> Iterator[Row]:
    """Max-min shares, as progressive filling gives them (Bertsekas and Gallager)."""
    for stack, wire, tcp in STACKS:
        for flows in (2, 8):
            shares = chain_shares(1, [Sends(0, 1)] * flows, wire, tcp)
            yield share_row(f"{stack}: {flows} flows over one link", "least share, 1/n",
                            min(shares), 1 / flows)
        shares = chain_shares(1, [Sends(0, 1, 2e9), Sends(0, 1), Sends(0, 1)], wire, tcp)
        yield share_row(f"{stack}: 3 flows, one of a slow port",
                        "share of its port's, 1/5", shares[0], 0.2, QUEUES_ADD)
        yield share_row(f"{stack}: 3 flows, one of a slow port",
                        "least of the others, 2/5", min(shares[1:]), 0.4, QUEUES_ADD)
        shares = chain_shares(2, [Sends(0, 2), Sends(0, 1), Sends(1, 1)], wire, tcp)
        yield share_row(f"{stack}: parking lot of two links", "long one's share, 1/2",
                        shares[0], 0.5, QUEUES_ADD)


def chain_shares(links: int, flows: Sequence[Sends], wire: Wire, tcp: Tcp | None) -> list[float]:
    """Shares of links of 10 Gb/s that flows have from half a second on, for as long."""
    rate_bps, settle_ns = 10e9, 500 * MS
    net = Net(links + 1, 32 << 20, JUMBO_HARP.payload)
    there, back = ([net.world.add_link(rate_bps, HOP_S, source=at + way, target=at + 1 - way,
                                       mark_bytes=MARK_BYTES) for at in range(links)]
                   for way in (0, 1))
    sent = []
    for flow in flows:
        last = flow.first + flow.links
        near, far = (net.host(switch, flow.bps, HOP_S) for switch in (flow.first, last))
        sent.append(net.send(near, far, tcp, there[flow.first:last],
                             back[flow.first:last][::-1]))
    net.world.advance(net.world.now_ns + settle_ns)
    return [count * 8 * wire.whole / (rate_bps * settle_ns * 1e-9)
            for count in net.frames(sent, settle_ns)]


def share_row(case: str, form: str, found: float, wanted: float, note: str = "") -> Row:
    """A share of a link."""
    row = Row(case, form, found, wanted, wanted, "", BERTSEKAS)
    return row._replace(note=note) if row.off else row


def start_slowly() -> Iterator[Row]:
    """Slow start doubles ten segments each round trip, until all are sent."""
    rtt_s = 0.02
    for segments in (10, 100, 500):
        net = Net(1, 256 << 20)
        near, far = (net.host(0, 100e9, rtt_s / 4) for _ in range(2))
        channel = net.connect(near, far, CUBIC)
        finish(net, channel, 1)
        net.world.advance(net.world.now_ns + 100 * MS)
        yield time_row(f"kernel TCP: {segments} segments over 20 ms",
                       "lg (n / 10 + 1) - 1/2 round trips",
                       finish(net, channel, segments * JUMBO_TCP.payload),
                       (ceil(log2(segments / 10 + 1)) - 0.5) * rtt_s, SLOW_START)


def lose_at_random() -> Iterator[Row]:
    """Rates of flows over a link with random loss."""
    rtt_s = 0.1
    for loss, window, form in ((1e-3, 1.225 / sqrt(1e-3), "segments, Reno's, 1.22 / sqrt p"),
                               (1e-4, 1.054 * rtt_s**0.75 / 1e-4**0.75,
                                "segments, 1.05 (rtt / p)^(3/4)")):
        found = lossy_rate(CUBIC, loss, rtt_s, 10e9, 400) * rtt_s
        yield Row(f"CUBIC: 100 ms, loss {loss:g}", form, found, window,
                  window, "", RFC9438, AT_RANDOM)
    loss, bps = 0.02, 100e6
    bbr = CUBIC._replace(congestion="bbr")
    found = lossy_rate(bbr, loss, 0.01, bps, 30) * 8 * JUMBO_TCP.whole / bps
    wanted = (1 - loss) * (1 - 0.2 / 10)
    yield Row("BBR: 100 Mb/s, 10 ms, loss 0.02",
              "1 - p, less 0.2 s of 10", found, wanted, wanted, "", BBR)


def lossy_rate(tcp: Tcp, loss: float, rtt_s: float, bps: float, seconds: int) -> float:
    """Segments a second that get through where a link loses at random."""
    net = Net(2, 256 << 20)
    there, back = (net.world.add_link(bps, rtt_s / 2, source=at, target=1 - at) for at in (0, 1))
    net.world.set_faults(there, LinkFaults(drop=loss))
    near, far = (net.host(at, 10 * bps, 1e-6) for at in (0, 1))
    channel = net.send(near, far, tcp, [there], [back])
    net.world.advance(net.world.now_ns + 60_000 * MS)
    return net.frames([channel], seconds * 1000 * MS)[0] / seconds


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
