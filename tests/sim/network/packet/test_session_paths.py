"""A session over two ports: both are used, whatever one of them delivers at the moment."""

from __future__ import annotations

import pytest

from sim.network.packet.packet_world import End, LinkFaults, Stage, World

MS = 1_000_000
US = 1e-6
RATE = 25e9
SEGMENT, HEADERS = 8832, 110
GOODPUT = SEGMENT / (SEGMENT + HEADERS)
MOST_WAITING = 1 << 20


class TwoPorts:
    """Two hosts with two ports each, and a switch for each port; data without end goes one way."""

    def __init__(self, thread_bps: float = 0.0, latency_s: tuple[float, float] = (US, US)) -> None:
        self.world = world = World(seed=1, segment=SEGMENT, overhead=66, slots=8,
                                   piece_bytes=512 << 10, unit_bytes=65536, idle_connections=64)
        self.up = [[world.add_link(RATE, latency) for latency in latency_s] for _ in range(2)]
        self.down = [[world.add_link(RATE, latency, source=switch)
                      for switch, latency in enumerate(latency_s)] for _ in range(2)]
        world.share_buffers(2, 32 << 20, 1.0)
        free = world.add_chain([], [])
        thread = world.add_chain([world.add_server()], [8 / thread_bps]) if thread_bps else free
        ends = [End(world.add_process(), thread, free) for _ in range(2)]
        there, back = ([world.add_route([self.up[src][port], self.down[1 - src][port]])
                        for port in range(2)] for src in range(2))
        self.channel = world.add_connection(ends[0], ends[1], there, back)

    def send(self, nbytes: int) -> int:
        """Hand a message over, in pieces of 512 KiB; the number of its run."""
        run = self.world.add_run(2, 1)
        assert self.world.advance(self.world.now_ns) == ("load", run)
        self.world.load(run, Stage([0], [1], [self.channel], [nbytes],
                                   [max(1, nbytes >> 19)]))
        return run

    def set_rate(self, port: int, share: float) -> None:
        """Let the sender's port deliver a share of its rate."""
        self.world.set_rate(self.up[0][port], share * RATE)

    def goodput_in(self, ms: int) -> float:
        """Payload that arrives in the next ``ms``, bit/s."""
        before = self.world.channel_frames(self.channel)
        self.world.advance(self.world.now_ns + ms * MS)
        frames = self.world.channel_frames(self.channel) - before
        return frames * SEGMENT * 8 / (ms * 1e-3)

    def longest_queue(self) -> int:
        """The most bytes that ever waited at a port of the sender."""
        return max(self.world.link_counts(link).most_bytes for link in self.up[0])


def busy_ports(thread_bps: float = 0.0) -> TwoPorts:
    """Two ports that have been busy for a while."""
    net = TwoPorts(thread_bps)
    net.send(1 << 33)
    net.goodput_in(20)
    return net


def test_session_uses_both_ports() -> None:
    assert busy_ports().goodput_in(50) > 0.95 * 2 * RATE * GOODPUT


@pytest.mark.parametrize("thread_gbps", [30, 40, 46, 49])
def test_bursts_do_not_gather_at_one_port_while_the_other_is_idle(thread_gbps: int) -> None:
    net = busy_ports(thread_gbps * 1e9)
    assert net.goodput_in(50) > 0.98 * thread_gbps * 1e9
    assert net.longest_queue() < MOST_WAITING


@pytest.mark.parametrize("thread_gbps", [0, 46])
def test_port_at_40_percent_leaves_95_percent_of_the_rest_after_50_ms(thread_gbps: int) -> None:
    net = busy_ports(thread_gbps * 1e9)
    net.set_rate(1, 0.4)
    net.goodput_in(50)
    assert net.goodput_in(50) > 0.95 * 1.4 * RATE * GOODPUT


@pytest.mark.parametrize("thread_gbps", [0, 46])
def test_pulled_port_leaves_90_percent_of_the_rest_after_100_ms(thread_gbps: int) -> None:
    net = busy_ports(thread_gbps * 1e9)
    net.set_rate(1, 0.0)
    net.goodput_in(100)
    assert net.goodput_in(50) > 0.9 * RATE * GOODPUT
    net.set_rate(1, 1.0)
    net.goodput_in(200)
    assert net.goodput_in(50) > 0.95 * min(2 * RATE * GOODPUT, thread_gbps * 1e9 or 2 * RATE)


def test_port_whose_mtu_shrinks_is_used_all_the_same() -> None:
    net = busy_ports()
    net.world.set_faults(net.up[0][1], LinkFaults(longest_bytes=1318))
    net.goodput_in(100)
    assert net.goodput_in(50) > 0.95 * 2 * RATE * GOODPUT


def test_short_messages_take_the_port_of_less_delay() -> None:
    net = TwoPorts(latency_s=(50 * US, US))
    net.send(1 << 20)
    net.world.advance()
    before = net.world.link_counts(net.up[0][0]).packets
    for _ in range(20):
        net.send(SEGMENT)
        net.world.advance()
    assert net.world.link_counts(net.up[0][0]).packets == before
