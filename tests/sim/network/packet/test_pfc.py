"""Priority flow control: nothing is lost, pauses propagate and block others, loops are named."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sim.network.packet.packet_world import End, PauseLoopError, Stage, World
from sim.schema.network_keys import Pfc

SEGMENT, OVERHEAD = 4096, 66
FRAME = SEGMENT + 44 + OVERHEAD
RATE, US = 100e9, 1e-6


def pfc(**sizes: str) -> Pfc:
    return Pfc.model_validate(sizes)


class Switched:
    """Hosts under switches, by cables with a link each way; one process a host."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed=seed, segment=SEGMENT, overhead=OVERHEAD, slots=8,
                           piece_bytes=512 << 10, unit_bytes=65536)
        self.links: dict[tuple[str, str], int] = {}
        self.rates: list[float] = []
        self.free = self.world.add_chain([], [])
        self.process: dict[str, int] = {}

    def cable(self, a: str, b: str, rate: float = RATE) -> None:
        """Add it; ``s0`` is switch 0, ``h...`` a host."""
        for near, far in ((a, b), (b, a)):
            self.links[near, far] = self.world.add_link(
                rate, US, source=number(near), target=number(far))
            self.rates.append(rate)
        for end in (a, b):
            if number(end) < 0:
                self.process.setdefault(end, self.world.add_process())

    def share(self, switches: int, nbytes: int, pauses: Pfc | None = None) -> None:
        self.world.share_buffers(switches, nbytes, 1.0)
        if pauses is not None:
            self.world.set_pfc([pauses.headroom_bytes(rate, US, FRAME) for rate in self.rates],
                               pauses.xoff or 0, pauses.xon_offset or 2 * FRAME)

    def connect(self, *way: str) -> int:
        """A channel that takes these hops, and its answers the same back."""
        there, back = ([self.links[hop] for hop in pairwise(nodes)]
                       for nodes in (way, way[::-1]))
        ends = [End(self.process[host], self.free, self.free) for host in (way[0], way[-1])]
        return self.world.add_connection(*ends, [self.world.add_route(there)],
                                         [self.world.add_route(back)])

    def move(self, channels: list[int], nbytes: int) -> None:
        """Move bytes on each channel, between ranks of its own."""
        run = self.world.add_run(2 * len(channels), 1)
        assert self.world.advance() == ("load", run)
        src = range(0, 2 * len(channels), 2)
        self.world.load(run, Stage(src, [rank + 1 for rank in src], channels,
                                   [nbytes] * len(channels), [8] * len(channels)))
        assert self.world.advance() == ("done", run)

    def pauses(self, near: str, far: str) -> int:
        return self.world.link_counts(self.links[near, far]).pauses


def number(node: str) -> int:
    return int(node[1:]) if node[0] == "s" else -1


def incast(pauses: Pfc | None, buffer_bytes: int = 600_000) -> Switched:
    net = Switched()
    for host in range(9):
        net.cable(f"h{host}", "s0")
    net.share(1, buffer_bytes, pauses)
    net.move([net.connect(f"h{host}", "s0", "h8") for host in range(8)], 4 << 20)
    return net


@pytest.mark.parametrize("pauses", [pfc(), pfc(xoff="20kB"),
                                 pfc(xoff="8kB", xon_offset="4kB")])
def test_switch_that_pauses_loses_nothing(pauses: Pfc) -> None:
    assert incast(None).world.counts().lost > 0
    net = incast(pauses)
    assert net.world.counts().lost == 0
    assert net.world.counts().again == 0
    assert sum(net.pauses(f"h{host}", "s0") for host in range(8)) > 0
    assert net.pauses("s0", "h8") == 0  # hosts pause nobody


def test_headroom_that_is_shorter_than_the_cable_loses_packets() -> None:
    assert incast(pfc(xoff="20kB", headroom="0B")).world.counts().lost > 0


def test_link_keeps_no_more_than_xoff_and_its_headroom() -> None:
    pauses = pfc(xoff="20kB")
    net = incast(pauses)
    most = net.world.link_counts(net.links["s0", "h8"]).most_bytes
    assert 20_000 < most <= 8 * (20_000 + FRAME + pauses.headroom_bytes(RATE, US, FRAME))


def two_tiers(pauses: Pfc | None) -> tuple[Switched, float]:
    """Four hosts send to a slow port, a fifth over the same trunk to another; seconds of that."""
    net = Switched()
    for host in range(5):
        net.cable(f"h{host}", "s0")
    net.cable("s0", "s1")
    net.cable("h5", "s1", 1e9)
    net.cable("h6", "s1")
    net.share(2, 2_000_000, pauses)
    slow = [net.connect(f"h{host}", "s0", "s1", "h5") for host in range(4)]
    other = net.connect("h4", "s0", "s1", "h6")
    runs = [net.world.add_run(2 * count, 1) for count in (4, 1)]
    for run, channels in zip(runs[::-1], ([other], slow), strict=True):
        assert net.world.advance() == ("load", run)
        src = range(0, 2 * len(channels), 2)
        net.world.load(run, Stage(src, [rank + 1 for rank in src], channels,
                                  [4 << 20] * len(channels), [8] * len(channels)))
    assert net.world.advance() == ("done", runs[1])
    return net, net.world.now_ns * 1e-9


def test_pause_also_blocks_flows_to_ports_that_are_free() -> None:
    """Head-of-line blocking: the trunk is paused for the slow port, and all stand still."""
    net, paused_s = two_tiers(pfc(xoff="20kB"))
    _, dropping_s = two_tiers(None)
    assert net.pauses("s0", "s1") > 0
    assert paused_s > 1.5 * dropping_s
    assert net.pauses("h4", "s0") > 0  # and the pause has gone on to the host itself


def test_pauses_in_a_circle_are_reported_and_do_not_hang() -> None:
    """Three switches, each sends to the one after the next: each waits for the next."""
    net = Switched()
    for switch in range(3):
        net.cable(f"s{switch}", f"s{(switch + 1) % 3}")
        for host in range(4):
            net.cable(f"h{switch}{host}", f"s{switch}")
    net.share(3, 4_000_000, pfc(xoff="8kB"))
    channels = [net.connect(f"h{a}{host}", f"s{a}", f"s{(a + 1) % 3}", f"s{(a + 2) % 3}",
                            f"h{(a + 2) % 3}{host}")
                for a in range(3) for host in range(4)]
    with pytest.raises(PauseLoopError) as caught:
        net.move(channels, 16 << 20)
    circle = [net.links[f"s{a}", f"s{(a + 1) % 3}"] for a in range(3)]
    assert sorted(caught.value.links) == sorted(circle)
    assert net.world.now_ns < 2e9


def test_headroom_is_of_cable_and_rate() -> None:
    """IEEE 802.1Qbb, annex O: the cable twice, two frames, and how long a pause takes."""
    assert pfc().headroom_bytes(100e9, 1e-6, 1538) == 25_000 + 2 * 1538 + 84 + 3840
    assert pfc(headroom="50kB").headroom_bytes(100e9, 1e-6, 1538) == 50_000
