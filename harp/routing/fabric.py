"""A fabric as arrays: switches, endpoint ports and the directed links between them.

Nodes are numbered: switches first, then endpoints. An endpoint is a NIC; a bonded NIC has
several ports, each a link of its own, possibly to different switches. Every cable is two directed
links, ``2c`` and ``2c + 1``, so the reverse of link ``l`` is ``l ^ 1``. A link keeps its number
when links fail: ``fabric.without(links)`` is the same fabric with fewer next hops.

Routes are shortest paths, hop by hop: each switch hashes the five-tuple and picks one of its
equal-cost links towards the switches that the destination hangs on. Links within an equal-cost
group stand in ascending order of their numbers. Switches differ by hash function and by ``salt``
(see ``hashes.pick``); with one salt everywhere the tiers polarise.

>>> from harp.routing.templates import Endpoints, leaf_spine
>>> fabric = leaf_spine(Endpoints.uniform(hosts=8), leaves=2, spines=4)
>>> ptr, links = fabric.route(fabric.flows([0, 1], [7, 6], src_port=[50000, 50001]))
>>> [fabric.link_name(link) for link in links[ptr[0]:ptr[1]]][0]
'host-0/eth0->leaf0'
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from harp.routing import bond, hashes
from harp.routing.ecmp import NextHops, next_hops

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Ints = NDArray[np.int64]


class UnreachableError(ValueError):
    """No path leads from one endpoint to another; the message names both."""


class Flows(NamedTuple):
    """Flows as arrays of one length: endpoint numbers and what the switches hash."""

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    tuples: hashes.FiveTuples

    def take(self, which: NDArray[np.int64] | NDArray[np.bool_]) -> Flows:
        """Select flows by index or mask."""
        return Flows(self.src[which], self.dst[which], self.tuples.take(which))


@dataclass(frozen=True, eq=False)
class Fabric:
    """A directed multigraph of switches and endpoints; see the module's manual.

    ``switches`` and ``endpoints`` are names; node ``n`` is switch ``n`` or endpoint
    ``n - len(switches)``. The ``link_*`` arrays have one entry a directed link: nodes at both
    ends, bits/s, seconds, and whether the link is up. ``endpoint_ports`` has shape (endpoints,
    most ports) and holds each port's outgoing link, -1 beyond a NIC's last port; the way in is
    that link ``^ 1``. ``endpoint_host`` and ``endpoint_nic`` number host and NIC; ``endpoint_ip``
    is the IPv4 address that five-tuples carry. ``hash_function`` (index into ``hashes.NAMES``) and
    ``hash_salt`` have one entry a switch.
    """

    switches: tuple[str, ...]
    endpoints: tuple[str, ...]
    link_src: NDArray[np.int32]
    link_dst: NDArray[np.int32]
    link_bps: NDArray[np.float64]
    link_latency_s: NDArray[np.float64]
    endpoint_ports: NDArray[np.int32]
    endpoint_host: NDArray[np.int32]
    endpoint_nic: NDArray[np.int32]
    endpoint_ip: NDArray[np.uint32]
    hash_function: NDArray[np.uint8]
    hash_salt: NDArray[np.uint32]
    link_up: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))

    def __post_init__(self) -> None:
        if not len(self.link_up):
            object.__setattr__(self, "link_up", np.ones(len(self.link_src), np.bool_))

    # ---- names

    def node_name(self, node: int) -> str:
        """Name a switch or an endpoint."""
        count = len(self.switches)
        return self.switches[node] if node < count else self.endpoints[node - count]

    def link_name(self, link: int) -> str:
        """``from->to`` of a directed link."""
        near, far = int(self.link_src[link]), int(self.link_dst[link])
        return f"{self.node_name(near)}->{self.node_name(far)}"

    @cached_property
    def nodes(self) -> dict[str, int]:
        """Number of each node by name."""
        return {name: node for node, name in enumerate((*self.switches, *self.endpoints))}

    @cached_property
    def cable_names(self) -> tuple[str, ...]:
        """A name of each directed link that no other has.

        It is ``from->to``, and ``from->to#2`` for the second of several cables between the two.
        """
        names = [self.link_name(link) for link in range(len(self.link_src))]
        many, seen = Counter(names), Counter[str]()
        for link, name in enumerate(names):
            seen[name] += 1
            if many[name] > 1:
                names[link] = f"{name}#{seen[name]}"
        return tuple(names)

    def cable_name(self, link: int) -> str:
        """One of `cable_names`, which are made when the first is asked for."""
        return self.cable_names[link]

    @cached_property
    def links_by_name(self) -> dict[str, list[int]]:
        """Numbers of the directed links of each name: ``from->to`` of all cables, or a cable's."""
        found: dict[str, list[int]] = {}
        for link, cable in enumerate(self.cable_names):
            for name in {self.link_name(link), cable}:
                found.setdefault(name, []).append(link)
        return found

    @cached_property
    def endpoint_texts(self) -> tuple[str, ...]:
        """Addresses of the endpoints, as people write them."""
        return tuple(str(IPv4Address(ip)) for ip in self.endpoint_ip.tolist())

    def links_between(self, a: str, b: str) -> Ints:
        """List the directed links from node ``a`` to ``b``, up or down (KeyError: no such node)."""
        return np.flatnonzero((self.link_src == self.nodes[a]) & (self.link_dst == self.nodes[b]))

    # ---- state

    def without(self, links: ArrayLike) -> Fabric:
        """Take these directed links down as well; numbers stay as they are."""
        link_up = self.link_up.copy()
        link_up[np.asarray(links, np.int64)] = False
        return replace(self, link_up=link_up)

    @cached_property
    def live_ports(self) -> NDArray[np.bool_]:
        """Whether each port can send: shape (endpoints, most ports)."""
        return (self.endpoint_ports >= 0) & self.link_up[self.endpoint_ports]

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that change with everything that decides a flow's path or rate."""
        digest = hashlib.sha256(repr((self.switches, self.endpoints)).encode())
        for column in (self.link_src, self.link_dst, self.link_bps, self.link_up,
                       self.endpoint_ports, self.endpoint_ip, self.hash_function, self.hash_salt):
            digest.update(np.ascontiguousarray(column).tobytes())
        return digest.hexdigest()[:16]

    # ---- flows

    def flows(
        self,
        src: ArrayLike,
        dst: ArrayLike,
        src_port: ArrayLike = hashes.FIRST_DYNAMIC_PORT,
        dst_port: ArrayLike = hashes.ROCE_PORT,
        proto: ArrayLike = hashes.UDP,
    ) -> Flows:
        """Flows between endpoints; their five-tuples have the endpoints' own addresses."""
        fields = [
            np.atleast_1d(np.asarray(f, np.int64)) for f in (src, dst, src_port, dst_port, proto)
        ]
        srcs, dsts = np.broadcast_arrays(*fields)[:2]
        src_ip, dst_ip = self.endpoint_ip[srcs], self.endpoint_ip[dsts]
        tuples = hashes.five_tuples(src_ip, dst_ip, src_port, dst_port, proto)
        return Flows(srcs.copy(), dsts.copy(), tuples)

    # ---- equal-cost multipath

    @cached_property
    def next_hops(self) -> NextHops:
        """Equal-cost groups of links by (attachment group of the destination, switch)."""
        return next_hops(self)

    def route(self, flows: Flows, port: ArrayLike | None = None) -> tuple[Ints, NDArray[np.int32]]:
        """Walk every flow through the fabric; ``(ptr, links)``, CSR of directed links.

        Flow ``i`` crosses ``links[ptr[i]:ptr[i + 1]]`` in order. ``port`` selects the port of
        its NIC a flow leaves; without it, a NIC with several ports is an LACP bond that hashes
        layer 3+4 (``bond.choose`` gives the others). A flow from an endpoint to itself crosses
        nothing. Raises UnreachableError.
        """
        hashed = hashes.FlowHashes(flows.tuples, self.hash_function)
        first = self._first_links(flows, port)
        at = self.link_dst[first].astype(np.int64)
        walked = np.flatnonzero(flows.src != flows.dst)
        path = np.full((len(flows.src), self.next_hops.diameter + 2), -1, np.int32)
        path[walked, 0] = first[walked]
        for hop in range(1, path.shape[1]):
            here = at[walked]
            choose = partial(hashed.pick, walked, self.hash_function[here], self.hash_salt[here])
            link = self.next_hops.pick(here, flows.dst[walked], choose)
            self._require(link >= 0, flows, walked)
            path[walked, hop] = link
            at[walked] = self.link_dst[link]
            walked = walked[at[walked] < len(self.switches)]
            if not len(walked):
                break
        crossed = path >= 0
        return self._ptr(crossed.sum(axis=1)), path[crossed]

    def route_spray(
        self, flows: Flows, port: ArrayLike | None = None
    ) -> tuple[Ints, NDArray[np.int32], NDArray[np.float64]]:
        """Spray every flow's packets over all shortest paths; ``(ptr, links, share)``.

        Each NIC sends an equal part over each live port (all over ``port`` if given) and each
        switch passes on an equal part over each of its equal-cost links; ``share`` is the part of
        flow ``i`` that crosses a link. A flow's links come in ascending order, each once; fold
        flows between the same endpoints first where there are many. Raises UnreachableError.
        """
        flow, link = self._spray_links(flows, port)
        share = 1.0 / np.bincount(flow)[flow]
        crossed: list[tuple[Ints, NDArray[np.int32], NDArray[np.float64]]] = [(flow, link, share)]
        while len(link):
            flow, at, share = self._gather(flow, self.link_dst[link], share)
            entry, link, ways = self.next_hops.expand(at, flows.dst[flow])
            self._require(ways > 0, flows, flow)
            flow, share = flow[entry], share[entry] / ways[entry]
            crossed.append((flow, link, share))
        count = len(self.link_src)
        keys = np.concatenate([flow * count + link for flow, link, _ in crossed])
        keys, shares = _sum_by_key(keys, np.concatenate([row[2] for row in crossed]))
        per_flow = np.bincount(keys // count, minlength=len(flows.src))
        return self._ptr(per_flow), (keys % count).astype(np.int32), shares

    def _spray_links(self, flows: Flows, port: ArrayLike | None) -> tuple[Ints, NDArray[np.int32]]:
        """List the links on which the packets of each flow leave their NIC: (flow, link)."""
        if port is None:
            self._require(self.live_ports[flows.src].any(axis=1) | (flows.src == flows.dst), flows)
            flow, column = np.nonzero(self.live_ports[flows.src])
            link = self.endpoint_ports[flows.src[flow], column]
        else:
            flow, link = np.arange(len(flows.src)), self._first_links(flows, port)
        leaves = flows.src[flow] != flows.dst[flow]
        return flow[leaves], link[leaves]

    def _gather(
        self, flow: Ints, node: NDArray[np.int32], share: NDArray[np.float64]
    ) -> tuple[Ints, Ints, NDArray[np.float64]]:
        """Sum the shares of a flow that meet at one switch; drop those that are at an endpoint."""
        switches = len(self.switches)
        inside = node < switches
        keys, summed = _sum_by_key(flow[inside] * switches + node[inside], share[inside])
        return keys // switches, keys % switches, summed

    @staticmethod
    def _ptr(counts: Ints) -> Ints:
        """CSR pointers of rows that have ``counts`` entries."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

    def _first_links(self, flows: Flows, port: ArrayLike | None) -> NDArray[np.int32]:
        """Find each flow's link out of its NIC."""
        chosen = bond.choose(self, flows, "lacp-3+4") if port is None else np.asarray(port)
        column = np.broadcast_to(chosen, flows.src.shape)[:, None]
        link = np.take_along_axis(self.endpoint_ports[flows.src], column, axis=1)[:, 0]
        self._require((link >= 0) & self.link_up[link] | (flows.src == flows.dst), flows)
        return link

    def _require(self, ok: NDArray[np.bool_], flows: Flows, which: Ints | None = None) -> None:
        """Raise UnreachableError for the first flow of ``which`` (default all) not ``ok``."""
        if ok.all():
            return
        bad = np.flatnonzero(~ok)
        flow = int((bad if which is None else which[bad])[0])
        src, dst = self.endpoints[flows.src[flow]], self.endpoints[flows.dst[flow]]
        raise UnreachableError(
            f"no path leads from {src} to {dst}: there are no links, or the links there are down"
        )


def _sum_by_key(keys: Ints, values: NDArray[np.float64]) -> tuple[Ints, NDArray[np.float64]]:
    """Sum the values of equal keys; keys come out ascending."""
    unique, inverse = np.unique(keys, return_inverse=True)
    summed = np.zeros(len(unique))
    np.add.at(summed, inverse, values)
    return unique, summed
