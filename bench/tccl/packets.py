"""Two hosts with two ports each, packet by packet: the network of scenes in virtual time.

       sender ── up[0] ──> ToR 0 ── down[0] ──> receiver      data; as many links lead back
              └─ up[1] ──> ToR 1 ── down[1] ──┘

HARP's ends are the sessions that hosts run, over one path for each port; kernel TCP's are two
flows, one on each port, or both on one. When a host sees its link go down, TCP's flows move to the
other port at once; a bond or a routing daemon would take a while.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from bench.tccl.goodput import BIN_S, Run, Trace
from bench.tccl.scenes import PORT
from harp.routing.bond import choose, colliding_pair
from harp.routing.templates import Endpoints, leaf_spine
from sim.network.packet.packet_world import ConnectionEndedError, End, LinkFaults, Stage, Tcp, World

if TYPE_CHECKING:
    from bench.tccl.scenes import Scene
    from harp.routing.bond import Policy

RATE_BPS = 25e9
"""Of each port."""
LATENCY_S = 1e-6
"""Of each link."""
MTU, PREAMBLE_ETHERNET = 9000, 38
HARP_SEGMENT, HARP_OVERHEAD = 8832, 110
"""Payload of a frame; its headers on the wire, of HARP 44."""
TCP_HEADERS = 52
"""IPv4, and TCP with timestamps."""
BUFFER_BYTES = 16 << 20
"""Of each ToR."""
MESSAGE = 64 << 20
PIECE = 512 << 10
LATE_S = 3e-5
"""Delay of a packet that others overtake: ten packets."""
TICK_NS = 1_000_000
DRAIN_NS = 5_000_000_000
PORTS = (0, 1)


class Packets:
    """The network, with the verbs of `bench.tccl.scenes.Network`."""

    def __init__(self, stack: str, seed: int) -> None:
        self.world = world = World(seed=seed, segment=HARP_SEGMENT, overhead=HARP_OVERHEAD - 44,
                                   slots=8, piece_bytes=PIECE, unit_bytes=65536)
        self._up = [[world.add_link(RATE_BPS, LATENCY_S) for _ in PORTS] for _ in range(2)]
        self._down = [[world.add_link(RATE_BPS, LATENCY_S, source=tor) for tor in PORTS]
                      for _ in range(2)]
        world.share_buffers(len(PORTS), BUFFER_BYTES, 1.0)
        self._there, self._back = ([
            world.add_route([self._up[host][port], self._down[1 - host][port]])
            for port in PORTS] for host in range(2))
        free = world.add_chain([], [])
        self._taking = world.add_chain([world.add_server()], [0.0])
        ends = (End(world.add_process(), free, free),
                End(world.add_process(), free, self._taking))
        if stack == "harp":
            self.payload = HARP_SEGMENT
            self.capacity_bps = 2 * RATE_BPS * HARP_SEGMENT / (HARP_SEGMENT + HARP_OVERHEAD)
            self.channels = [world.add_connection(*ends, self._there, self._back)]
            self._ports: list[int] = []
        else:
            self.payload = MTU - TCP_HEADERS
            self.capacity_bps = 2 * RATE_BPS * self.payload / (MTU + PREAMBLE_ETHERNET)
            self._ports = _hashed_ports(stack)
            tcp = Tcp(self.payload, TCP_HEADERS + PREAMBLE_ETHERNET)
            self.channels = [world.add_tcp(*ends, [self._there[port]], [self._back[port]], tcp)
                             for port in self._ports]

    def received_bytes(self) -> int:
        """Payload that came, each frame counted once."""
        return sum(self.world.channel_frames(channel) for channel in self.channels) * self.payload

    def _set_links(self, links: list[int], share: float) -> None:
        for link in links:
            self.world.set_rate(link, share * RATE_BPS)

    def _move_flows(self, *, up: bool) -> None:
        for channel, port in zip(self.channels, self._ports, strict=False):
            at = port if up else 1 - PORT
            self.world.set_routes(channel, [self._there[at]], [self._back[at]])

    def set_cable(self, *, up: bool) -> None:
        """See `bench.tccl.scenes.Network`."""
        self._set_links([self._up[0][PORT], self._down[0][PORT]], float(up))
        self._move_flows(up=up)

    def set_tor(self, *, up: bool) -> None:
        """See `bench.tccl.scenes.Network`."""
        self._set_links([links[host][PORT] for links in (self._up, self._down)
                         for host in range(2)], float(up))
        self._move_flows(up=up)

    def remove_nic(self) -> None:
        """See `bench.tccl.scenes.Network`."""
        self.set_cable(up=False)

    def set_rate(self, share: float) -> None:
        """See `bench.tccl.scenes.Network`."""
        self._set_links([self._down[1][PORT]], share)

    def lose(self, share: float, *, answers: bool = False) -> None:
        """See `bench.tccl.scenes.Network`."""
        self.world.set_faults(self._up[int(answers)][PORT], LinkFaults(drop=share))

    def corrupt(self, share: float) -> None:
        """See `bench.tccl.scenes.Network`: a bad packet crosses, and its receiver drops it."""
        self.world.set_faults(self._down[1][PORT], LinkFaults(drop=share))

    def shrink_mtu(self, nbytes: int) -> None:
        """See `bench.tccl.scenes.Network`."""
        self.world.set_faults(self._up[0][PORT],
                              LinkFaults(longest_bytes=nbytes + PREAMBLE_ETHERNET))

    def reorder(self, share: float) -> None:
        """See `bench.tccl.scenes.Network`."""
        self.world.set_faults(self._up[0][PORT], LinkFaults(late=share, late_s=LATE_S))

    def slow_receiver(self, share: float) -> None:
        """See `bench.tccl.scenes.Network`."""
        self.world.set_pace(self._taking, 0, 8 / (share * self.capacity_bps))


def _hashed_ports(stack: str) -> list[int]:
    """The ports of two flows between two hosts, on both or as a bond's policy hashes them."""
    if stack == "tcp":
        return [*PORTS]
    fabric = leaf_spine(Endpoints.uniform(2, ports=2), leaves=2, spines=1)
    policy: Policy = "lacp-2+3" if stack == "tcp-2+3" else "lacp-3+4"
    pair = colliding_pair(fabric, 0, 1, policy)
    return [int(port) for port in choose(fabric, pair, policy)]


class _Traffic:
    """Messages without end on every channel, until ``ended`` is set."""

    def __init__(self, net: Packets) -> None:
        self._net = net
        self._channel_of: dict[int, int] = {}
        self.ended = False
        for channel in net.channels:
            self._begin(channel)

    def _begin(self, channel: int) -> None:
        world = self._net.world
        run = world.add_run(2, 1)
        assert world.advance(world.now_ns) == ("load", run)
        world.load(run, Stage([0], [1], [channel], [MESSAGE], [MESSAGE // PIECE]))
        self._channel_of[run] = channel

    def advance(self, until_ns: int) -> None:
        """Let time pass."""
        while self._channel_of:
            what, run = self._net.world.advance(until_ns)
            if what == "time":
                return
            channel = self._channel_of.pop(run)
            if not self.ended:
                self._begin(channel)

    @property
    def bytes_open(self) -> int:
        """Of messages that have not come whole."""
        return len(self._channel_of) * MESSAGE


def run_packet(scene: Scene, stack: str, seed: int = 1) -> Run:
    """Play a scene with ``harp``, or with the stack that `bench.tccl.scenes.Scene.tcp` names."""
    net = Packets(stack, seed)
    traffic = _Traffic(net)
    moments = deque(scene.moments)
    run = Run(Trace(), [], net.capacity_bps, 0, "", [])
    had, again = 0, 0
    try:
        for tick in range(round(scene.end_s * 1e9) // TICK_NS):
            while moments and moments[0].at_s * 1e9 <= tick * TICK_NS:
                run.moments_s.append(moments[0].at_s)
                moments.popleft().action(net)
            traffic.advance((tick + 1) * TICK_NS)
            if net.world.counts().again > again:
                again = net.world.counts().again
                run.signs_s.append((tick + 1) * TICK_NS * 1e-9)
            if (tick + 1) % round(BIN_S * 1e9 / TICK_NS) == 0:
                run.trace.bits.append((net.received_bytes() - had) * 8)
                had = net.received_bytes()
        traffic.ended = True
        traffic.advance(net.world.now_ns + DRAIN_NS)
    except ConnectionEndedError as ended:
        return run._replace(lost_bytes=traffic.bytes_open, error=str(ended))
    return run._replace(lost_bytes=traffic.bytes_open)
