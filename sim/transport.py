"""How the bytes of one message cross the cluster: which resources, how much of each, what latency.

A message between GPUs of one host takes the host's GPU fabric. One between hosts takes, in order:
PCIe, the sending host's stack cores, vNIC and host caps, the fabric's links, and the same at the
receiver. Costs per payload byte:

- links and caps: (payload + headers) / payload of a packet, the overlay's headers on links only;
- packet caps: 1 / payload;
- the GPU's network thread and the stack's cores of either host: cost_per_byte + cost_per_packet /
  payload. A stack that may use one core a host is bound by that core, one that may use many by
  the thread of each GPU that talks to other hosts.

An edge is split evenly over the ``sockets`` of its channel, each a flow with its own source port,
and over the ports of a dynamic bond; NCCL splits a chunk evenly over its sockets as well. The rate
of an edge is bounded by sockets times the lower of the stack's and the VPC's ceiling of one flow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harp.routing import bond
from harp.routing.overlay import encapsulate
from harp.routing.planner import plan_paths

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from harp.routing.fabric import Fabric, Flows
    from sim.cluster import Cluster
    from sim.schema.parameters import HostStack

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

ETHERNET_BYTES = 38
"""Header 14, FCS 4, preamble and gap 20 (IEEE 802.3): what a frame adds to its IP packet."""
FIRST_PORT, PORTS = 49152, 16384
"""Dynamic source ports (RFC 6335)."""
MOST_PLANNED = 1 << 15
"""Flows of one phase that are planned; of more (an all-to-all), hashing spreads evenly enough."""


@dataclass(frozen=True, eq=False)
class Paths:
    """What each of n edges uses, as rows (edge, resource, units of it per payload byte).

    ``alpha_s``: latency of one message before its first byte counts; ``message_s``: the stacks'
    cost of one message; ``ceiling``: payload bytes/s that an edge never exceeds.
    """

    edge: Ints
    resource: Ints
    coefficient: Floats
    alpha_s: Floats
    message_s: Floats
    ceiling: Floats

    @property
    def edges(self) -> int:
        """Number of edges."""
        return len(self.alpha_s)

    def solo_rate(self, capacity: Floats) -> Floats:
        """Payload bytes/s of each edge when nothing else runs."""
        rate = self.ceiling.copy()
        with np.errstate(divide="ignore"):
            np.minimum.at(rate, self.edge, capacity[self.resource] / self.coefficient)
        return rate

    def footprints(self, group: Ints, share: Floats) -> tuple[Ints, Ints, Floats]:
        """Routes (CSR) of flows that each move the edges of one group together.

        ``group`` numbers each edge's flow from 0 without gaps; an edge moves ``share`` bytes for
        each byte of its flow.
        """
        width = int(self.resource.max(initial=0)) + 1
        key = group[self.edge] * width + self.resource
        order = np.argsort(key, kind="stable")
        key, starts = np.unique(key[order], return_index=True)
        weighted = (self.coefficient * share[self.edge])[order]
        coefficient = np.add.reduceat(weighted, starts) if len(starts) else weighted
        used = coefficient > 0
        key, coefficient = key[used], coefficient[used]
        groups = int(group.max(initial=-1)) + 1
        ptr = np.searchsorted(key // width, np.arange(groups + 1))
        return ptr, key % width, coefficient


@dataclass(frozen=True)
class Style:
    """How a scenario uses the network."""

    routing: str = "ecmp"
    sockets: int = 1
    bond: str | None = None


class Transport:
    """Paths between GPUs for one stack and one style of routing; see the module's manual."""

    def __init__(self, cluster: Cluster, stack: HostStack, style: Style) -> None:
        self.cluster = cluster
        self.stack = stack
        self.style = style
        self.fabric: Fabric = cluster.fabric
        bonds = {nic.bond for group in cluster.topology.hosts for nic in group.nics
                 if nic.ports > 1}
        self.bond = (style.bond or min(bonds)) if bonds else None
        vpc = cluster.topology.vpc
        headers = stack.headers.value
        mtu = vpc.mtu if vpc else 1500
        self.payload = mtu - max(headers - ETHERNET_BYTES, 0)
        overlay = vpc.overlay.headers if vpc and vpc.overlay else 0
        self.cap_bytes = (self.payload + headers) / self.payload
        self.link_bytes = (self.payload + headers + overlay) / self.payload
        flow_rate = min(stack.flow_rate.value, vpc.flow_rate if vpc and vpc.flow_rate else math.inf)
        self.ceiling = style.sockets * flow_rate / 8
        self.core_s = stack.cost_per_byte.value + stack.cost_per_packet.value / self.payload

    def paths(self, src: ArrayLike, dst: ArrayLike, channel: int = 0) -> Paths:
        """Paths of edges from GPUs ``src`` to GPUs ``dst`` on one channel."""
        src, dst = np.asarray(src, np.int64), np.asarray(dst, np.int64)
        host = self.cluster.host
        inner = host[src] == host[dst]
        rows: list[tuple[Ints, Ints, ArrayLike]] = []
        alpha_s, message_s = np.zeros(len(src)), np.zeros(len(src))
        ceiling = np.full(len(src), math.inf)
        self._inside(np.flatnonzero(inner), src, dst, rows, alpha_s)
        between = np.flatnonzero(~inner)
        if len(between):
            self._between(between, src, dst, channel, rows, alpha_s)
            message_s[between] = self.stack.cost_per_message.value
            ceiling[between] = self.ceiling
        edge = np.concatenate([row[0] for row in rows])
        resource = np.concatenate([row[1] for row in rows])
        coefficient = np.concatenate([np.broadcast_to(np.asarray(row[2], np.float64), len(row[0]))
                                      for row in rows])
        return Paths(edge, resource, coefficient, alpha_s, message_s, ceiling)

    def _inside(self, edge: Ints, src: Ints, dst: Ints,
                rows: list[tuple[Ints, Ints, ArrayLike]], alpha_s: Floats) -> None:
        """Add the edges within a host."""
        cluster, host = self.cluster, self.cluster.host[src[edge]]
        for has in (True, False):
            some = edge[cluster.has_nvlink[host] == has]
            kind = "nvlink" if has else "pcie"
            rows.append((some, cluster.blocks[f"{kind}_out"][src[some]], 1.0))
            rows.append((some, cluster.blocks[f"{kind}_in"][dst[some]], 1.0))
        alpha_s[edge] = np.where(cluster.has_nvlink[host], cluster.nvlink_latency_s[host],
                                 cluster.pcie_latency_s[host])

    def _between(self, edge: Ints, src: Ints, dst: Ints, channel: int,
                 rows: list[tuple[Ints, Ints, ArrayLike]], alpha_s: Floats) -> None:
        """Add the edges between hosts."""
        cluster, blocks = self.cluster, self.cluster.blocks
        for gpu, way in ((src[edge], "out"), (dst[edge], "in")):
            host, vnic = cluster.host[gpu], cluster.vnic[gpu]
            rows.append((edge, blocks[f"pcie_{way}"][gpu], 1.0))
            if self.core_s:
                rows.append((edge, blocks["proxy"][gpu], self.core_s))
                rows.append((edge, blocks["cores"][host], self.core_s))
            for kind, member, cost in ((f"vnic_{way}", vnic, self.cap_bytes),
                                       (f"host_{way}", host, self.cap_bytes),
                                       (f"packets_{way}", host, 1 / self.payload)):
                if kind in blocks:
                    rows.append((edge, blocks[kind][member], cost))
        owner, link, share = self._links(edge, src, dst, channel)
        rows.append((owner, blocks["link"][link], share * self.link_bytes))
        latency_s = np.zeros(len(alpha_s))
        np.add.at(latency_s, owner, share * self.fabric.link_latency_s[link])
        alpha_s[edge] = (latency_s[edge] + self.stack.start_latency.value
                         + cluster.pcie_latency_s[cluster.host[src[edge]]]
                         + cluster.pcie_latency_s[cluster.host[dst[edge]]])

    def _links(self, edge: Ints, src: Ints, dst: Ints,
               channel: int) -> tuple[Ints, Ints, Floats]:
        """Rows (edge, fabric link, share of the edge's bytes)."""
        sockets = self.style.sockets
        owner = np.repeat(edge, sockets)
        socket = np.tile(np.arange(sockets), len(edge))
        a, b = self.cluster.endpoint[src[owner]], self.cluster.endpoint[dst[owner]]
        if self.style.routing == "plan" and len(owner) <= MOST_PLANNED:
            return self._planned(owner, a, b)
        flows = self.fabric.flows(a, b, self._source_port(src[owner], dst[owner], channel, socket))
        return self._hashed(owner, flows)

    def _planned(self, owner: Ints, src: Ints, dst: Ints) -> tuple[Ints, Ints, Floats]:
        """Plan the flows together, each on links of its own as far as the fabric has them."""
        links = plan_paths(self.fabric, src, dst).links
        flow, hop = np.nonzero(links >= 0)
        return owner[flow], links[flow, hop], np.full(len(flow), 1.0 / self.style.sockets)

    def _hashed(self, owner: Ints, flows: Flows) -> tuple[Ints, Ints, Floats]:
        """Let bonds and switches hash (or spray) the flows."""
        weight = np.full(len(owner), 1.0 / self.style.sockets)
        vpc = self.cluster.topology.vpc
        if vpc is not None and vpc.overlay is not None:
            flows = encapsulate(self.fabric, flows, vpc.overlay.hash)
        port: Ints | None = None
        if self.bond == "dynamic":
            parts = bond.split(self.fabric, flows)
            owner, weight = owner[parts.parent], weight[parts.parent] * parts.weight
            flows, port = parts.flows, parts.port
        elif self.bond is not None:
            port = bond.choose(self.fabric, flows, self.bond)  # type: ignore[arg-type]
        if self.style.routing == "spray":
            ptr, link, share = self.fabric.route_spray(flows, port)
        else:
            ptr, link = self.fabric.route(flows, port)
            share = np.ones(len(link))
        flow = np.repeat(np.arange(len(owner)), np.diff(ptr))
        return owner[flow], link.astype(np.int64), share * weight[flow]

    def _source_port(self, src: Ints, dst: Ints, channel: int, socket: Ints) -> NDArray[np.uint16]:
        """Ports as a kernel would hand them out: any, but the same in every run."""
        words = np.stack([src, dst, np.full_like(src, channel), socket], axis=1).astype(np.uint64)
        mixed = np.full(len(src), self.cluster.topology.seed + 0x9E3779B9, np.uint64)
        for column in words.T:  # a 64-bit mix of four numbers (splitmix64's finaliser)
            mixed = (mixed ^ column) * np.uint64(0xBF58476D1CE4E5B9)
            mixed ^= mixed >> np.uint64(27)
        return (FIRST_PORT + mixed % np.uint64(PORTS)).astype(np.uint16)
