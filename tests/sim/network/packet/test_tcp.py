"""Kernel TCP at the ends of the packet network, against closed forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from scapy.layers.inet import IP, TCP
from scapy.utils import rdpcap

from sim.network.packet.packet_world import CONGESTION, ConnectionEndedError, End, Stage, Tcp
from tests.sim.network.packet.packet_net import US
from tests.sim.network.packet.packet_net import Net as SessionNet

if TYPE_CHECKING:
    from pathlib import Path

MSS, HEADERS = 1448, 90
WIRE = MSS + HEADERS
MS = 1_000_000


class Net(SessionNet):
    """Hosts on one switch whose connections are kernel TCP's."""

    def connect(self, src: int, dst: int, chain: int | None = None, sockets: int = 1,
                congestion: str = "cubic", **costs: float) -> int:
        there = [self.world.add_route([self.up[src], self.down[dst]]) for _ in range(sockets)]
        back = [self.world.add_route([self.up[dst], self.down[src]]) for _ in range(sockets)]
        send = self.free if chain is None else chain
        return self.world.add_tcp(
            End(self.process[src], send, self.free), End(self.process[dst], self.free, self.free),
            there, back, Tcp(MSS, HEADERS, congestion), **costs)

    def begin(self, src: int, dst: int, channel: int) -> None:
        """Let a channel send without end from now on."""
        run = self.world.add_run(1 + max(src, dst), 1)
        assert self.world.advance(self.world.now_ns) == ("load", run)
        self.world.load(run, Stage([src], [dst], [channel], [1 << 36], [1 << 17]))

    def frames(self, channels: list[int], for_ns: int) -> list[int]:
        """Segments that get through on each channel in a while."""
        before = [self.world.channel_frames(channel) for channel in channels]
        self.world.advance(self.world.now_ns + for_ns)
        return [self.world.channel_frames(channel) - n
                for channel, n in zip(channels, before, strict=True)]


def serialised(nbytes: int, rate: float) -> float:
    """Seconds that a message keeps a link."""
    segments, rest = divmod(nbytes, MSS)
    return (segments * WIRE + (rest and rest + HEADERS)) * 8 / rate


def jain(shares: list[int]) -> float:
    """Jain's index: 1 where all are equal (Jain, Chiu and Hawe, DEC-TR-301, 1984)."""
    return sum(shares) ** 2 / (len(shares) * sum(n * n for n in shares))


def share_port(congestion: str, flows: int, **net: float) -> tuple[Net, list[int]]:
    """Flows from hosts of their own into one port, which is the last one's."""
    made = Net(flows + 1, **net)
    channels = [made.connect(source, flows, congestion=congestion) for source in range(flows)]
    for source, channel in enumerate(channels):
        made.begin(source, flows, channel)
    return made, channels


def test_single_segment_takes_serialisation_on_each_link_and_latency() -> None:
    net = Net(2)
    channel = net.connect(0, 1)
    net.move([(0, 1)], [channel], 1)
    assert net.move([(0, 1)], [channel], MSS) == pytest.approx(
        2 * (WIRE * 8 / net.rate + US), abs=2e-9)


def test_first_segment_waits_for_the_handshake() -> None:
    net = Net(2)
    channel = net.connect(0, 1)
    handshake_s = 4 * (HEADERS * 8 / net.rate + US)
    assert net.move([(0, 1)], [channel], MSS) == pytest.approx(
        handshake_s + 2 * (WIRE * 8 / net.rate + US), abs=6e-9)


@pytest.mark.parametrize("congestion", CONGESTION)
def test_long_message_takes_the_line_rate(congestion: str) -> None:
    net = Net(2, rate=25e9)
    channel = net.connect(0, 1, congestion=congestion)
    net.move([(0, 1)], [channel], 16 << 20, pieces=32)
    nbytes = 64 << 20
    took_s = net.move([(0, 1)], [channel], nbytes, pieces=128)
    assert took_s == pytest.approx(serialised(nbytes, net.rate), rel=0.03)
    assert took_s > serialised(nbytes, net.rate)
    assert net.world.counts().lost == 0


def test_connection_that_is_closed_while_idle_is_opened_by_the_next_piece() -> None:
    kept, closed = Net(3), Net(3, idle_connections=1)
    took_s = []
    for net in (kept, closed):
        channels = [net.connect(0, dst, sockets=2) for dst in (1, 2)]
        for channel, dst in zip(channels, (1, 2), strict=True):
            net.move([(0, dst)], [channel], MSS)
        took_s.append(net.move([(0, 1)], channels[:1], MSS))
        assert net.world.channel_frames(channels[0]) == 2
    handshake_s = 4 * (HEADERS * 8 / kept.rate + US)  # SYN and SYN/ACK
    assert took_s[1] == pytest.approx(took_s[0] + handshake_s, abs=1e-6)


def test_late_segments_of_a_closed_connection_reach_nobody() -> None:
    """The last ACKs are on their way when the connection closes, and when the next one opens."""
    net = Net(3, idle_connections=0)
    channels = [net.connect(0, dst) for dst in (1, 2)]
    for _ in range(50):
        for channel, dst in zip(channels, (1, 2), strict=True):
            net.move([(0, dst)], [channel], 10 * MSS)
    assert [net.world.channel_frames(channel) for channel in channels] == [500, 500]
    assert net.world.counts().again == 0


def test_slow_server_of_a_host_sets_the_pace() -> None:
    net = Net(2)
    chain = net.world.add_chain([net.world.add_server()], [1 / 2e9])
    channel = net.connect(0, 1, chain)
    nbytes = 16 << 20
    assert net.move([(0, 1)], [channel], nbytes, pieces=32) == pytest.approx(nbytes / 2e9, rel=0.02)


@pytest.mark.parametrize("congestion", CONGESTION)
@pytest.mark.parametrize("flows", [2, 8])
def test_flows_into_one_port_use_it_and_share_it(congestion: str, flows: int) -> None:
    net, channels = share_port(congestion, flows, rate=10e9, buffer_bytes=4 << 20,
                               mark_bytes=65 * 1500)
    net.frames(channels, 100 * MS)
    shares = net.frames(channels, 200 * MS)
    assert sum(shares) * WIRE * 8 > 0.98 * net.rate * 0.2
    assert jain(shares) > 0.85


def test_what_a_short_buffer_drops_is_sent_again_and_no_more() -> None:
    net = Net(5, rate=10e9, buffer_bytes=256 << 10)
    pairs = [(source, 4) for source in range(4)]
    channels = [net.connect(*pair) for pair in pairs]
    nbytes = 16 << 20
    took_s = net.move(pairs, channels, nbytes, pieces=32)
    counts = net.world.counts()
    assert counts.lost > 0
    assert counts.again == pytest.approx(counts.lost, rel=0.1)
    assert took_s == pytest.approx(4 * serialised(nbytes, net.rate), rel=0.1)


def test_dctcp_keeps_its_queue_at_the_mark() -> None:
    """Queue of K + 1 window each at most (Alizadeh et al., SIGCOMM 2010, section 3.3)."""
    net, channels = share_port("dctcp", 2, rate=10e9, buffer_bytes=4 << 20, mark_bytes=65 * 1500)
    net.frames(channels, 20 * MS)
    queues = []
    for _ in range(200):
        assert sum(net.frames(channels, MS // 10)) * WIRE * 8 > 0.97 * net.rate * 1e-4
        queues.append(net.world.link_counts(net.down[2]).waiting_bytes)
    assert 0.5 < sum(queues) / len(queues) / (65 * 1500) < 1.3
    assert net.world.counts().lost == 0


def test_only_dctcp_is_marked() -> None:
    for congestion in CONGESTION:
        net, channels = share_port(congestion, 2, rate=10e9, buffer_bytes=4 << 20,
                                   mark_bytes=65 * 1500)
        net.frames(channels, 10 * MS)
        marked = net.world.link_counts(net.down[2]).marked
        assert (marked > 0) == (congestion == "dctcp")


def test_piece_is_cut_among_sockets_in_turn() -> None:
    net = Net(2)
    routes = [[net.world.add_link(100e9, US), net.world.add_link(100e9, US, source=0)]
              for _ in range(4)]
    channel = net.world.add_tcp(
        End(net.process[0], net.free, net.free), End(net.process[1], net.free, net.free),
        [net.world.add_route(route) for route in routes],
        [net.world.add_route([net.up[1], net.down[0]]) for _ in range(4)], Tcp(MSS, HEADERS))
    net.move([(0, 1)], [channel], 8 * (384 << 10), pieces=8)  # parts of 96 KiB
    segments = 8 * -(-(96 << 10) // MSS)
    for first, _ in routes:
        assert net.world.link_counts(first).packets == pytest.approx(segments, rel=0.03)
    net.move([(0, 1)], [channel], 100 << 10)  # 64 KiB and the rest
    packets = [net.world.link_counts(first).packets for first, _ in routes]
    assert sorted(n - packets[3] > 20 for n in packets) == [False, False, True, True]


@pytest.mark.parametrize(("down_ms", "most_ms"), [(0.02, 20), (5, 210)])
def test_lost_tail_is_mended_by_a_probe_or_a_timeout(down_ms: float, most_ms: float) -> None:
    """A tail loss probe goes after two round trips and 8 ms, a timeout after 200 ms."""
    net = Net(2, rate=10e9)
    channel = net.connect(0, 1)
    net.move([(0, 1)], [channel], 1 << 20)
    nbytes = 40 * MSS
    run = net.world.add_run(2, 1)
    net.world.advance()
    net.world.load(run, Stage([0], [1], [channel], [nbytes], [1]))
    start_ns = net.world.now_ns
    net.world.advance(start_ns + 40_000)
    net.world.set_rate(net.down[1], 0)
    net.world.advance(start_ns + 40_000 + round(down_ms * MS))
    net.world.set_rate(net.down[1], 10e9)
    assert net.world.advance() == ("done", run)
    took_ms = (net.world.now_ns - start_ns) / MS
    assert net.world.counts().lost > 0
    assert 8 < took_ms < most_ms


def test_connection_that_is_never_answered_ends() -> None:
    net = Net(2)
    channel = net.connect(0, 1)
    net.move([(0, 1)], [channel], 1)
    net.world.set_rate(net.down[1], 0)
    with pytest.raises(ConnectionEndedError, match="got no answer"):
        net.move([(0, 1)], [channel], MSS)


@pytest.mark.parametrize("congestion", CONGESTION)
def test_same_seed_gives_the_same_run(congestion: str) -> None:
    def run(seed: int) -> tuple[int, ...]:
        net, channels = share_port(congestion, 3, rate=10e9, buffer_bytes=512 << 10, seed=seed)
        return (*net.frames(channels, 20 * MS), *net.world.counts())
    assert run(1) == run(1)


def test_capture_is_tcp_as_scapy_reads_it(tmp_path: Path) -> None:
    net = Net(3, buffer_bytes=128 << 10, rate=10e9)
    pairs = [(0, 2), (1, 2)]
    channels = [net.connect(*pair) for pair in pairs]
    for number, channel in enumerate(channels):
        net.world.name_path(channel, 0, (0x0A000001 + number, 0x0A0000FF), (50000 + number, 4000))
    path = tmp_path / "port.pcap"
    net.world.capture(net.down[2], str(path), 1 << 30)
    nbytes = 1 << 20
    net.move(pairs, channels, nbytes)
    assert net.world.end_capture()
    frames = rdpcap(str(path))
    for number in range(2):
        mine = [frame for frame in frames if frame[TCP].sport == 50000 + number]
        assert mine[0][TCP].flags == "S"
        found = set()
        for frame in mine[1:]:
            at, length = frame[TCP].seq - 1, frame[IP].len - 20 - 32
            found.update(range(at, at + length))
        assert found == set(range(nbytes))
        check = mine[5].copy()
        del check[TCP].chksum, check[IP].chksum
        again = check.__class__(bytes(check))
        assert again[TCP].chksum == mine[5][TCP].chksum
        assert again[IP].chksum == mine[5][IP].chksum
