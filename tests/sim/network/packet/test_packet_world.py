"""The packet network against closed forms: what one flow takes, how flows share, what queues do."""

from __future__ import annotations

import pytest

from harp.routing.templates import Endpoints, leaf_spine
from sim.network.packet.packet_world import NIC, ConnectionEndedError, End, Stage, World

SEGMENT, OVERHEAD, HARP = 4096, 66, 44
ETHERNET_LEAST = 84
WIRE = SEGMENT + HARP + OVERHEAD
US = 1e-6


class Net:
    """Hosts on one switch; every link has one rate and a latency of 1 us."""

    def __init__(self, hosts: int, rate: float = 100e9, seed: int = 1, slots: int = 8,
                 buffer_bytes: int = 0, idle_connections: int = 4096, **port: int) -> None:
        self.world = World(seed=seed, segment=SEGMENT, overhead=OVERHEAD,
                           slots=slots, piece_bytes=4 << 20, unit_bytes=65536,
                           idle_connections=idle_connections)
        self.rate = rate
        self.up = [self.world.add_link(rate, US) for _ in range(hosts)]
        self.down = [self.world.add_link(rate, US, source=0, **port) for _ in range(hosts)]
        if buffer_bytes:
            self.world.share_buffers(1, buffer_bytes, 1.0)
        self.free = self.world.add_chain([], [])
        self.process = [self.world.add_process() for _ in range(hosts)]

    def connect(self, src: int, dst: int, chain: int | None = None, **costs: float) -> int:
        there = self.world.add_route([self.up[src], self.down[dst]])
        back = self.world.add_route([self.up[dst], self.down[src]])
        send = self.free if chain is None else chain
        return self.world.add_connection(End(self.process[src], send, self.free),
                                         End(self.process[dst], self.free, self.free),
                                         [there], [back], **costs)

    def move(self, pairs: list[tuple[int, int]], channels: list[int], nbytes: int,
             pieces: int = 1) -> float:
        """Move ``nbytes`` on each channel at once; seconds."""
        start_ns = self.world.now_ns
        ranks = 1 + max(max(pair) for pair in pairs)
        run = self.world.add_run(ranks, 1)
        assert self.world.advance() == ("load", run)
        count = len(pairs)
        self.world.load(run, Stage([a for a, _ in pairs], [b for _, b in pairs], channels,
                                   [nbytes] * count, [pieces] * count))
        assert self.world.advance() == ("done", run)
        return (self.world.now_ns - start_ns) * 1e-9


def serialised(nbytes: int, rate: float) -> float:
    """Seconds that a message keeps a link."""
    frames, rest = divmod(nbytes, SEGMENT)
    return (frames * WIRE + (rest and rest + HARP + OVERHEAD)) * 8 / rate


def test_single_frame_takes_serialisation_on_each_link_and_latency() -> None:
    net = Net(2)
    channel = net.connect(0, 1)
    net.move([(0, 1)], [channel], 1)  # handshake and credit
    assert net.move([(0, 1)], [channel], SEGMENT) == pytest.approx(
        2 * (WIRE * 8 / net.rate + US), abs=2e-9)


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


def test_delay_and_message_cost_come_before_the_first_frame() -> None:
    net = Net(2)
    channel = net.connect(0, 1, delay_s=10e-6, message_s=0.5e-6)
    net.move([(0, 1)], [channel], 1)
    assert net.move([(0, 1)], [channel], SEGMENT) == pytest.approx(
        2 * (WIRE * 8 / net.rate + US) + 11e-6, abs=2e-9)  # a message costs either end


def test_long_message_takes_the_line_rate() -> None:
    net = Net(2)
    channel = net.connect(0, 1)
    net.move([(0, 1)], [channel], 4 << 20, pieces=8)
    nbytes = 64 << 20
    took_s = net.move([(0, 1)], [channel], nbytes, pieces=128)
    assert took_s == pytest.approx(serialised(nbytes, net.rate), rel=0.03)
    assert took_s > serialised(nbytes, net.rate)


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


def test_token_bucket_bursts_while_it_has_tokens() -> None:
    net = Net(2)
    base, burst, tokens, nbytes = 1e9, 5e9, 4 << 20, 16 << 20
    bucket = net.world.add_bucket(1 / base, base / burst, tokens)
    channel = net.connect(0, 1, net.world.add_chain([bucket], [1 / base]))
    first_s = tokens / (burst - base)
    rest_s = (nbytes - burst * first_s) / base
    assert net.move([(0, 1)], [channel], nbytes, pieces=32) == pytest.approx(first_s + rest_s,
                                                                            rel=0.01)


@pytest.mark.parametrize("way", ["out", "in"])
def test_policer_lets_its_rate_and_its_bucket_through_and_drops_the_rest(way: str) -> None:
    net = Net(2)
    rate, tokens, nbytes = 1e9, 1 << 20, 16 << 20
    policer = net.world.add_policer(1 / rate, tokens)
    chain = net.world.add_chain([policer], [1 / rate])
    ends = [End(process, net.free, net.free) for process in net.process]
    ends = [ends[0]._replace(send_chain=chain) if way == "out" else ends[0],
            ends[1]._replace(receive_chain=chain) if way == "in" else ends[1]]
    routes = [net.world.add_route([net.up[a], net.down[1 - a]]) for a in (0, 1)]
    channel = net.world.add_connection(*ends, routes[:1], routes[1:])
    took_s = net.move([(0, 1)], [channel], nbytes, pieces=32)
    counts = net.world.counts()
    assert counts.policed > 0
    assert counts.lost == counts.policed
    assert counts.data * SEGMENT <= took_s * rate + tokens + SEGMENT
    assert (nbytes - tokens) / rate <= took_s < 2 * nbytes / rate


def test_policer_drops_nothing_below_its_rate() -> None:
    net = Net(2)
    slower, policer = net.world.add_server(), net.world.add_policer(1 / 1.25e9, 16 << 10)
    chain = net.world.add_chain([slower, policer], [1 / 1.2e9, 1 / 1.25e9])
    channel = net.connect(0, 1, chain)
    net.move([(0, 1)], [channel], 8 << 20, pieces=16)
    assert net.world.counts().policed == 0


def test_spray_uses_every_shortest_path() -> None:
    fabric = leaf_spine(Endpoints.uniform(2), leaves=2, spines=4)
    world = World(seed=1, segment=SEGMENT, overhead=OVERHEAD, slots=8,
                  piece_bytes=4 << 20, unit_bytes=65536)
    switches = len(fabric.switches)
    ends = [node if node < switches else NIC for node in range(switches + 2)]
    for source, target in zip(fabric.link_src.tolist(), fabric.link_dst.tolist(), strict=True):
        world.add_link(100e9, US, source=ends[source], target=ends[target])
    world.share_buffers(switches, 32 << 20, 1.0)
    world.set_paths(fabric.next_hops)
    free = world.add_chain([], [])
    host = [End(world.add_process(), free, free) for _ in range(2)]
    routes = [world.add_spray(int(fabric.endpoint_ports[end, 0]), 1 - end) for end in range(2)]
    channel = world.add_connection(*host, routes[:1], routes[1:])
    nbytes = 32 << 20
    run = world.add_run(2, 1)
    world.advance()
    world.load(run, Stage([0], [1], [channel], [nbytes], [8]))
    assert world.advance() == ("done", run)
    assert world.now_ns * 1e-9 == pytest.approx(serialised(nbytes, 100e9), rel=0.05)
    up = [world.link_counts(int(fabric.links_between("leaf0", f"spine{n}")[0])).packets
          for n in range(4)]
    assert sum(up) >= nbytes // SEGMENT
    assert min(up) > 0.2 * sum(up)


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


def test_pieces_within_a_host_share_a_chain() -> None:
    net = Net(2)
    chain = net.world.add_chain([net.world.add_server()], [1 / 10e9])
    pipes = [net.world.add_pipe(chain, 2e-6) for _ in range(2)]
    nbytes = 4 << 20
    took_s = net.move([(0, 1), (1, 0)], pipes, nbytes, pieces=8)
    assert took_s == pytest.approx(2 * nbytes / 10e9 + 2e-6, rel=0.01)


def test_ring_takes_its_steps_at_line_rate() -> None:
    ranks, nbytes = 8, 16 << 20
    net = Net(ranks)
    pairs = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    channels = [net.connect(*pair) for pair in pairs]
    net.move(pairs, channels, 4 << 20, pieces=8)
    start_ns = net.world.now_ns
    run = net.world.add_run(ranks, 1)
    net.world.advance()
    steps, pieces = 2 * (ranks - 1), 4  # an allreduce; shards of 4 pieces
    feeds = [(rank - 1) % ranks for rank in range(ranks)]
    net.world.load(run, Stage(*zip(*pairs, strict=True), channels,
                              [nbytes // ranks * steps] * ranks, [steps * pieces] * ranks,
                              pieces, feeds, list(range(ranks))))
    assert net.world.advance() == ("done", run)
    took_s = (net.world.now_ns - start_ns) * 1e-9
    assert took_s == pytest.approx(serialised(nbytes // ranks * steps, net.rate), rel=0.04)


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


def test_same_calls_give_the_same_run() -> None:
    def congested() -> tuple[float, tuple[int, ...]]:
        net = Net(9, buffer_bytes=256 << 10, mark_bytes=128 << 10)
        pairs = [(source, 8) for source in range(8)]
        took_s = net.move(pairs, [net.connect(*pair) for pair in pairs], 2 << 20, pieces=4)
        return took_s, tuple(net.world.counts())

    first = congested()
    assert first[1][3] > 0  # packets were lost
    assert congested() == first
