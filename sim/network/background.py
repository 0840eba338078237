"""Background traffic: flows at random times, the same ones at every fidelity.

Flows arrive as a Poisson process, from NICs in proportion to their rates, to NICs drawn uniformly,
with sizes of a published distribution; their rate follows from the ``load`` of the file. Times,
ends, sizes and source ports depend on the seed alone, so that `flow` carries the same flows as
fluids that `packet` sends as TCP segments. They cross the links, but no hosts and caps of a VPC.
Bonds and switches hash them, whatever the routing of the jobs is.

A network provides a `Carrier`, and `BackgroundTraffic` begins the flows on it at their times.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from harp.routing import hashes
from sim.network.packet_routes import hashed_links, reverse
from sim.network.transport import ETHERNET_BYTES

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    import simpy
    from numpy.typing import NDArray

    from sim.network.transport import Transport
    from sim.schema.scenario_keys import Background

    Ints = NDArray[np.int64]

BLOCK = 64
"""Number of flows that are drawn and routed together."""
TCP_IP_BYTES = 52
"""Headers of a segment: IPv4 and TCP with time stamps (RFC 791, 9293, 7323)."""
SERVICE_PORT = 5001
"""Destination port of all flows; its value is arbitrary."""
NS = 1e-9


class Sizes(NamedTuple):
    """A distribution of flow sizes: share of the flows of at most ``nbytes``."""

    nbytes: tuple[int, ...]
    share: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Bytes of a flow in the mean; between two points sizes are spread evenly."""
        middle = (np.array(self.nbytes[1:]) + np.array(self.nbytes[:-1])) / 2
        return float(np.diff(self.share) @ middle)

    def draw(self, share: NDArray[np.float64]) -> Ints:
        """Quantiles: the sizes below which these shares of the flows are."""
        return np.maximum(np.ceil(np.interp(share, self.share, self.nbytes)), 1).astype(np.int64)


SIZES = {
    "web-search": Sizes(
        (0, 10_000, 20_000, 30_000, 50_000, 80_000, 200_000, 1_000_000, 2_000_000, 5_000_000,
         10_000_000, 30_000_000),
        (0, .15, .20, .30, .40, .53, .60, .70, .80, .90, .97, 1)),
    "data-mining": Sizes(
        (0, 180, 216, 560, 900, 1_100, 1_870, 3_160, 10_000, 400_000, 3_160_000, 100_000_000,
         1_000_000_000),
        (0, .1, .2, .3, .4, .5, .6, .7, .8, .9, .95, .98, 1)),
}
"""Alizadeh et al., DCTCP, SIGCOMM 2010, figure 4, and Greenberg et al., VL2, SIGCOMM 2009, figure
2, as numbers in HKUST's TrafficGenerator (conf/DCTCP_CDF.txt, conf/VL2_CDF.txt); HPCC's
traffic_gen/WebSearch_distribution.txt has the same for the first."""


class BackgroundFlow(NamedTuple):
    """A flow, and when it begins."""

    at_ns: int
    src: int
    """Endpoints of the fabric."""
    dst: int
    nbytes: int
    source_port: int


class FlowRoutes(NamedTuple):
    """Links that a flow's data and its ACKs cross, and what switches hash of the data."""

    there: list[int]
    back: list[int]
    ips: tuple[int, int]
    ports: tuple[int, int]


class Carrier(Protocol):
    """The part of a network that carries background flows, known by their numbers."""

    def begin(self, number: int, flow: BackgroundFlow, routes: FlowRoutes,
              congestion: str) -> simpy.Event:
        """Begin a flow now; the event comes when its last byte has arrived."""

    def reroute(self, number: int, routes: FlowRoutes) -> None:
        """Move an open flow to other links."""


class BackgroundTraffic:
    """The flows of one scenario's background.

    Args:
        env: the clock.
        transport: the links, their state, and the seed of the flows.
        sources: the file's background entries.
        carrier: carries the flows.
    """

    def __init__(self, env: simpy.Environment, transport: Transport,
                 sources: Sequence[Background], carrier: Carrier) -> None:
        self._env, self._transport, self._carrier = env, transport, carrier
        self._open: dict[int, BackgroundFlow] = {}
        self._begun = 0
        for number, source in enumerate(sources):
            env.process(self._offer(source, number))

    def reroute(self) -> None:
        """Route all open flows again after a change of the links."""
        flows = list(self._open.items())
        routes = find_flow_routes(self._transport, [flow for _, flow in flows])
        for (number, _), route in zip(flows, routes, strict=True):
            self._carrier.reroute(number, route)

    def _offer(self, source: Background, number: int) -> Generator[simpy.Event, None, None]:
        transport, flows = self._transport, arrivals(self._transport, source, number)
        while True:
            block = [next(flows) for _ in range(BLOCK)]
            routes: list[FlowRoutes] = []
            routed = None
            for at, flow in enumerate(block):
                yield self._env.timeout(max(flow.at_ns * NS - self._env.now, 0.0))
                if routed != transport.links.key:
                    routed = transport.links.key
                    routes = [*routes[:at], *find_flow_routes(transport, block[at:])]
                self._begin(flow, routes[at], source.congestion)

    def _begin(self, flow: BackgroundFlow, routes: FlowRoutes, congestion: str) -> None:
        number = self._begun
        self._begun += 1
        self._open[number] = flow
        done = self._carrier.begin(number, flow, routes, congestion)

        def forget(_: simpy.Event) -> None:
            del self._open[number]

        done.callbacks.append(forget)


def segment_bytes(transport: Transport) -> tuple[int, int]:
    """Payload of a full segment, and its other bytes on a line."""
    return (transport.mtu - TCP_IP_BYTES,
            TCP_IP_BYTES + ETHERNET_BYTES + transport.overlay_bytes)


def arrivals(transport: Transport, source: Background, number: int) -> Iterator[BackgroundFlow]:
    """The flows of one source without end, in the order in which they begin."""
    senders, receivers = (_endpoints(transport, names)
                          for names in (source.senders, source.receivers))
    fabric, sizes = transport.links.whole, SIZES[source.sizes]
    host = fabric.endpoint_host
    others = {int(sender): receivers[host[receivers] != host[sender]] for sender in senders}
    ports = fabric.endpoint_ports[senders]
    bps = np.where(ports >= 0, fabric.link_bps[ports], 0.0).sum(axis=1)
    payload, headers = segment_bytes(transport)
    flow_bits = 8 * sizes.mean * (payload + headers) / payload
    mean_ns = flow_bits / (source.load * bps.sum()) / NS
    random = np.random.default_rng([transport.seed, number])
    at_ns = 0
    while True:
        gap, sender, receiver, size, port = random.random((5, BLOCK))
        src = senders[np.searchsorted(np.cumsum(bps / bps.sum()), sender).clip(max=len(bps) - 1)]
        for row in range(BLOCK):
            at_ns += round(-math.log1p(-gap[row]) * mean_ns)
            far = others[int(src[row])]
            yield BackgroundFlow(at_ns, int(src[row]), int(far[int(receiver[row] * len(far))]),
                                 int(sizes.draw(size[row:row + 1])[0]),
                                 hashes.FIRST_DYNAMIC_PORT + int(
                                     port[row] * hashes.DYNAMIC_PORTS_N))


def _endpoints(transport: Transport, names: Sequence[str]) -> Ints:
    """NICs of these hosts."""
    every = list(transport.cluster.topology.host_names)
    hosts = [every.index(name) for name in names]
    return np.flatnonzero(np.isin(transport.links.whole.endpoint_host, hosts))


def find_flow_routes(transport: Transport, flows: Sequence[BackgroundFlow]) -> list[FlowRoutes]:
    """Hash flows over the current links; raises CutOffError if none lead to the destination."""
    if not flows:
        return []
    src, dst, port = (np.array(column) for column in zip(
        *((flow.src, flow.dst, flow.source_port) for flow in flows), strict=True))
    made = transport.links.fabric.flows(src, dst, port, SERVICE_PORT, hashes.TCP)
    there, back = transport.over_links(lambda fabric: tuple(
        hashed_links(transport, fabric, each) for each in (made, reverse(made))))
    tuples = made.tuples
    return [FlowRoutes(links, answers, ips, ports) for links, answers, ips, ports in zip(
        there, back,
        zip(tuples.src_ip.tolist(), tuples.dst_ip.tolist(), strict=True),
        zip(tuples.src_port.tolist(), tuples.dst_port.tolist(), strict=True), strict=True)]
