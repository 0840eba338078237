"""Routes of a connection's packets: the links of each of its paths in order, in both directions.

They equal those of the fluid network: the same source ports, planned or hashed by the same bonds
and switches (`sim.network.transport`). An ACK takes the route of the reversed five-tuple.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from harp.routing import bond
from harp.routing.fabric import UnreachableError
from harp.routing.hashes import FiveTuples
from harp.routing.overlay import encapsulate
from sim.network.transport import DYNAMIC

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from harp.routing.fabric import Fabric, Flows
    from sim.network.transport import Transport

    Ints = NDArray[np.int64]


class OneWayRoute(NamedTuple):
    """Links in order; or, where ``to`` is an endpoint, the first one and then any shortest path."""

    links: list[int]
    to: int = -1


class Route(NamedTuple):
    """One path of a connection: the links of the data, and those of the ACKs."""

    there: OneWayRoute
    back: OneWayRoute
    ips: tuple[int, int]
    """Of the data's five-tuple, source and target."""
    ports: tuple[int, int]


def find_routes(transport: Transport, src: Ints, dst: Ints, channel: Ints) -> list[list[Route]]:
    """Routes of each path of connections from GPUs ``src`` to ``dst``, each on a ``channel``.

    Raises CutOffError where the links that are not down for good lead nowhere.
    """
    owner, flows = transport.flows(np.arange(len(src)), src, dst, channel)
    return transport.over_links(lambda fabric: _routes(transport, fabric, owner, flows, len(src)))


def _routes(transport: Transport, fabric: Fabric, owner: Ints, flows: Flows,
            count: int) -> list[list[Route]]:
    found: list[list[Route]] = [[] for _ in range(count)]
    if not len(flows.src):  # all of them stay inside hosts
        return found
    if transport.style.routing == "spray":
        _add_sprayed(fabric, found, owner, flows)
        return found
    planned = transport.planned_paths(fabric, flows)
    if planned is not None:
        there = [[link for link in links if link >= 0] for links in planned.links.tolist()]
        flows = flows._replace(tuples=flows.tuples._replace(src_port=planned.source_port))
        _add_routes(found, owner, flows, there, hashed_links(transport, fabric, reverse(flows)))
        return found
    policies = np.array(transport.bond_policies(flows.src))
    for policy in np.unique(policies).tolist():
        some = np.flatnonzero(policies == policy)
        mine, parts = owner[some], flows.take(some)
        port = None
        if policy == DYNAMIC:
            split = bond.split(fabric, parts)
            mine, parts, port = mine[split.parent], split.flows, split.port
        _add_routes(found, mine, parts, hashed_links(transport, fabric, parts, port),
                    hashed_links(transport, fabric, reverse(parts)))
    return found


def _add_routes(found: list[list[Route]], owner: Ints, flows: Flows, there: list[list[int]],
                back: list[list[int]]) -> None:
    for edge, named, links, answers in zip(owner.tolist(), _names(flows), there, back, strict=True):
        found[edge].append(Route(OneWayRoute(links), OneWayRoute(answers), *named))


def _names(flows: Flows) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """IP addresses and ports of each flow."""
    tuples = flows.tuples
    yield from zip(zip(tuples.src_ip.tolist(), tuples.dst_ip.tolist(), strict=True),
                   zip(tuples.src_port.tolist(), tuples.dst_port.tolist(), strict=True),
                   strict=True)


def _add_sprayed(fabric: Fabric, found: list[list[Route]], owner: Ints, flows: Flows) -> None:
    """A path for each live port of a flow's NIC; answers take the ports of theirs in turn."""
    for edge, src, dst, named in zip(owner.tolist(), flows.src.tolist(), flows.dst.tolist(),
                                     _names(flows), strict=True):
        ports, answers = (fabric.endpoint_ports[end][fabric.live_ports[end]].tolist()
                          for end in (src, dst))
        if not ports or not answers:
            raise UnreachableError(f"{fabric.endpoints[src]} or {fabric.endpoints[dst]} has no "
                                   "port that is up")
        found[edge] += [Route(OneWayRoute([port], dst),
                              OneWayRoute([answers[number % len(answers)]], src), *named)
                        for number, port in enumerate(ports)]


def hashed_links(transport: Transport, fabric: Fabric, flows: Flows,
                port: Ints | None = None) -> list[list[int]]:
    """Links of each flow in order; unless a port is given, its NIC's bond chooses it."""
    vpc = transport.cluster.topology.vpc
    if vpc is not None and vpc.overlay is not None:
        flows = encapsulate(fabric, flows, vpc.overlay.hash)
    if port is None:
        port = np.zeros(len(flows.src), np.int64)
        policies = np.array(transport.bond_policies(flows.src))
        for policy in np.unique(policies).tolist():
            some = np.flatnonzero(policies == policy)
            # An answer is one packet, which a dynamic bond hashes like any other.
            port[some] = bond.choose(fabric, flows.take(some),
                                     "lacp-3+4" if policy == DYNAMIC else policy)
    ptr, links = fabric.route(flows, port)
    return [part.tolist() for part in np.split(links, ptr[1:-1])]


def reverse(flows: Flows) -> Flows:
    """Flows of the answers."""
    tuples = flows.tuples
    return flows._replace(src=flows.dst, dst=flows.src, tuples=FiveTuples(
        src_ip=tuples.dst_ip, dst_ip=tuples.src_ip, src_port=tuples.dst_port,
        dst_port=tuples.src_port, proto=tuples.proto))
