"""Pace and flows of each edge between GPUs, for the hosts of a laboratory."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

import numpy as np

from harp.routing.hashes import ROCE_PORT
from lab.wiring import PinnedFlow
from sim.network.lab.messages import EdgeFlows
from sim.network.lab.pace import EdgePace
from sim.network.packet_routes import find_routes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lab.wiring import Wiring
    from sim.cluster.cluster import Cluster
    from sim.network.packet_routes import Route
    from sim.network.transport import Transport

    Edge = tuple[int, int, int]
    """Channel, and the GPUs that send and receive."""


@dataclass
class _Known:
    """An edge that has connections: what they are called, and where their packets enter."""

    flows: EdgeFlows
    there: list[int]
    back: list[int]


class LabFlows:
    """The five-tuples of all edges between hosts: those of `sim.network.packet_routes`."""

    def __init__(self, transport: Transport, wiring: Wiring, protocol: str) -> None:
        self._transport, self._wiring, self._protocol = transport, wiring, protocol
        self._known: dict[Edge, _Known] = {}

    def of(self, edges: Sequence[Edge]) -> dict[Edge, EdgeFlows]:
        """Flows of the edges that leave their host; new ones are routed."""
        host = self._transport.cluster.host
        outer = [edge for edge in edges if host[edge[1]] != host[edge[2]]]
        new = [edge for edge in outer if edge not in self._known]
        for edge, routes in zip(new, self._find(new), strict=True):
            src, dst = (str(IPv4Address(ip)) for ip in routes[0].ips)
            self._known[edge] = _Known(
                EdgeFlows(src, dst, tuple(route.ports[0] for route in routes)),
                [route.there.links[0] for route in routes],
                [route.back.links[0] for route in routes])
        self._wiring.pin(self._pins(new))
        return {edge: self._known[edge].flows for edge in outer}

    def reroute(self) -> None:
        """Choose ports of NICs anew, since the state of the links has changed."""
        edges = list(self._known)
        for edge, routes in zip(edges, self._find(edges), strict=True):
            known = self._known[edge]
            # A port that is down has no path: those that are left take its place.
            for path in range(len(known.there)):
                route = routes[path % len(routes)]
                known.there[path], known.back[path] = route.there.links[0], route.back.links[0]
        self._wiring.pin(self._pins(edges))

    def _find(self, edges: Sequence[Edge]) -> list[list[Route]]:
        if not edges:
            return []
        channel, src, dst = (np.array(column) for column in zip(*edges, strict=True))
        return find_routes(self._transport, src, dst, channel)

    def _pins(self, edges: Sequence[Edge]) -> Iterator[tuple[PinnedFlow, int]]:
        for edge in edges:
            known = self._known[edge]
            src, dst, ports = known.flows
            for port, there, back in zip(ports, known.there, known.back, strict=True):
                yield PinnedFlow(self._protocol, src, port, dst, ROCE_PORT), there
                yield PinnedFlow(self._protocol, dst, ROCE_PORT, src, port), back


class EdgePaces:
    """Pacers of each edge: all resources of the cluster but the fabric's links."""

    def __init__(self, transport: Transport, scale: float) -> None:
        self._transport, self._scale = transport, scale
        self._hosts = _hosts_of_resources(transport.cluster)
        self._threads = None if transport.helped else transport.cluster.blocks["thread"]

    def of(self, edges: Sequence[Edge]) -> dict[Edge, EdgePace]:
        """Paces by channel and GPUs."""
        if not edges:
            return {}
        channel, src, dst = (np.array(column) for column in zip(*edges, strict=True))
        paths = self._transport.paths(src, dst, channel)
        made: dict[Edge, EdgePace] = {}
        capacity = self._transport.capacity
        for number, edge in enumerate(edges):
            rows = np.flatnonzero(paths.edge == number)
            every = [(int(paths.resource[row]), float(
                paths.coefficient[row] / capacity[paths.resource[row]] / self._scale))
                for row in rows]
            uses = [use for use in every if use[0] in self._hosts]
            links_s = [byte_s for resource, byte_s in every if resource not in self._hosts]
            near = self._transport.cluster.host[edge[1]]
            made[edge] = EdgePace(
                tuple(use for use in uses if self._hosts[use[0]] == near),
                tuple(use for use in uses if self._hosts[use[0]] != near),
                float(paths.message_s[number]) / self._scale,
                None if self._threads is None else (int(self._threads[edge[1]]),
                                                    int(self._threads[edge[2]])),
                float(paths.alpha_s[number]) / self._scale,
                1.0 / float(paths.ceiling[number]) / self._scale,
                max(links_s, default=0.0), sum(links_s), self._transport.payload)
        return made


def _hosts_of_resources(cluster: Cluster) -> dict[int, int]:
    """The host of every resource that is in one."""
    found: dict[int, int] = {}
    members = {"memory": cluster.memory, "switch_out": cluster.gpu_switch,
               "switch_in": cluster.gpu_switch}
    each_gpu = np.arange(cluster.gpus)
    for kind, block in cluster.blocks.items():
        if kind == "link":
            continue
        if len(block.capacity) == cluster.gpus:
            pairs = zip(block[each_gpu].tolist(), cluster.host.tolist(), strict=True)
        elif kind in members:
            parts = [*members[kind].tolist(), *cluster.nic_switch.tolist()] if (
                kind != "memory") else members[kind].tolist()
            hosts = cluster.host.tolist() * (len(parts) // cluster.gpus)
            pairs = zip(block[np.array(parts)].tolist(), hosts, strict=True)
        else:
            each = len(block.capacity) // cluster.hosts
            numbers = np.arange(len(block.capacity))
            pairs = zip(block[numbers].tolist(), (numbers // each).tolist(), strict=True)
        found.update(pairs)
    return found
