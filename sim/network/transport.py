"""Paths of messages through the cluster: resources, units of each per byte, and latency.

A message between GPUs of one host takes the host's GPU fabric: NVLink, or PCIe with its host
bridges and the link between sockets, or, where GPUs have no access to each other's memory, PCIe and
the memory of the host. One between hosts takes, in
order: PCIe, the sending host's memory, network thread and cores, vNIC and host caps, the fabric's
links, and the same at the receiver. Costs per payload byte:

- links and caps: (payload + headers) / payload of a packet, the overlay's headers on links only;
- packet caps: 1 / payload;
- the network threads of the GPU's process and the cores of either host: cost_per_byte +
  cost_per_packet / payload;
- the memory of the NUMA node that the NIC is on: memory_per_byte.

A message's bytes go on in units: a link takes a whole frame before the next one does, so does the
receiving host, and the sender hands over a burst (`sim.network.message_paths.Stages`).

The stack's costs and the time on a line are multiplied by its ``deviation``, the difference between
one cluster and the next; only draws set it to other than 1.

One process drives each GPU, and its own threads (``threads`` of the stack; NCCL's proxy thread is
one) carry all its connections. Helper threads belong to one connection instead: they replace the
process's thread, and bound the rate of an edge. In either case the process's one proxy thread
handles the messages of all its connections, sent and received, one after the other.

An edge is split evenly over the ``sockets`` of its connection, each a flow with its own source
port, as NCCL splits a chunk. A dynamic bond splits a flow over its ports in proportion to the rate
of each port's path on an idle network. The rate of an edge is bounded by sockets times the lower of
the stack's ceiling of one flow, in payload, and the VPC's, in packets.

Routes avoid links that are down. Where no other path is left, traffic keeps the route of the whole
fabric and waits for the links to return; if they never return, a CutOffError is raised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from harp.routing import bond, hashes
from harp.routing.fabric import UnreachableError
from harp.routing.overlay import encapsulate
from sim.network.interface import CutOffError
from sim.network.link_state import LinkState
from sim.network.message_paths import Paths, Stages
from sim.network.nccl_limits import OVERHEAD_S, Limits
from sim.network.planned import SharedPlan
from sim.schema.input_errors import Problem
from sim.schema.nccl_defaults import connection, uses_sockets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

    from harp.collectives.collective_plan import Plan
    from harp.collectives.ir import Phase
    from harp.routing.fabric import Fabric, Flows
    from sim.cluster.cluster import Cluster
    from sim.network.planned import PlannedPaths
    from sim.schema.parameters import HostStack
    from sim.schema.scenario_keys import Scenario
    from sim.schema.topology_model import Topology

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Rows = tuple[Ints, Ints, Floats]
    HostRows = list[tuple[Ints, Ints, ArrayLike]]

Routed = TypeVar("Routed")
ETHERNET_BYTES = 38
"""Bytes of a frame beside its IP packet: header 14, FCS 4, preamble and gap 20 (IEEE 802.3)."""
SHARED_MEMORY = 4.0
"""Bytes that pass the host's memory for each byte that two GPUs exchange through it: a write and a
read, counted twice, since transfers through memory reach about half of what its data sheet says
(see memory_per_byte of kernel-tcp)."""
HOST_BRIDGE = 1.2
"""PCIe bytes for each byte that two GPUs exchange through a host bridge: processors cut such
packets to 64 B (INTEL_P2P_OVERHEAD of src/graph/topo.h, NVIDIA/nccl 2.22; published, of Intel's).
"""
DYNAMIC = "dynamic"
"""The bond that splits a flow; every other one gives it one port."""
BURST_BYTES = 65536
"""Most bytes that kernel TCP hands to a NIC at once: GSO_LEGACY_MAX_SIZE of Linux."""
WINDOW_BYTES = 3 << 20
"""Bytes that a socket of kernel TCP may have in flight: half of the last figure of tcp_rmem, 6 MiB,
since the other half is for what the kernel keeps beside data (tcp_adv_win_scale, 1; Linux's
ip-sysctl). Published, of kernels before 6.16 and hosts that nobody tuned; fidelity packet has the
same. NCCL sets no buffers."""
KEPT_EDGES, KEPT_ROUTES = 1024, 256
"""Largest set of edges with cached links, and number of such sets."""
_kept: WeakKeyDictionary[Cluster, dict[tuple[object, ...], Rows]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Style:
    """Settings of a scenario's use of the network."""

    routing: str = "ecmp"
    sockets: int = 1
    helpers: int = 0
    """Threads of each connection; where 0, the process's own thread moves its bytes."""
    bond: str | None = None
    """Overrides the bonds of the NICs."""
    congestion: str | None = None
    """Congestion control of kernel TCP, for networks that have any; None: another stack."""

    @classmethod
    def of(cls, scenario: Scenario, topology: Topology, stack: str | None = None) -> Style:
        """Take it from a scenario, over ``stack`` or its own.

        Raises TopologyError where the file's VPC does not admit it.
        """
        if scenario.routing == "plan" and topology.vpc is not None and topology.vpc.overlay:
            names = [other.name for other in topology.scenarios]
            raise topology.error(Problem(
                "'plan' cannot steer an overlay: switches hash the outer headers, which the tenant "
                "does not choose", path=("scenarios", names.index(scenario.name), "routing"),
                found="plan", allowed="ecmp or spray, or a vpc without overlay"))
        helpers, sockets = connection(topology, scenario, stack)
        routing, congestion = scenario.routing, None
        if uses_sockets(stack or scenario.stack, topology.stacks):
            routing = "ecmp" if routing == "plan" else routing  # the kernel chooses source ports
            congestion = scenario.congestion or "cubic"
        return cls(routing, sockets, helpers, scenario.bond, congestion)


def edges_on_channels(phase: Phase, placement: Sequence[Ints]) -> tuple[Ints, Ints, Ints]:
    """GPUs at both ends of a phase's edges, channel after channel, and the channel of each."""
    return (np.concatenate([gpus[phase.src] for gpus in placement]),
            np.concatenate([gpus[phase.dst] for gpus in placement]),
            np.repeat(np.arange(len(placement)), len(phase.src)))


class Transport:
    """Paths between GPUs for one stack and one style of routing; see the module's manual."""

    def __init__(self, cluster: Cluster, stack: HostStack, style: Style,
                 seed: int | None = None) -> None:
        self.cluster = cluster
        self.seed = cluster.topology.seed if seed is None else seed
        self.stack = stack
        self.style = style
        self.links = LinkState(cluster.fabric)
        """Rates that links deliver at present; dynamic bonds follow them."""
        self._waits: dict[bytes, str] = {}
        self._policies, self._bonds = self._bond_of_nics()
        self._rails = len(np.unique(cluster.endpoint[cluster.host == cluster.host[0]]))
        topology = cluster.topology
        vpc = topology.vpc
        headers = stack.headers.value
        path = ("vpc", "mtu") if vpc and vpc.mtu is not None else ("fabric", "mtu")
        self.mtu = mtu = vpc.mtu if vpc and vpc.mtu is not None else topology.fabric.mtu
        self.payload = mtu - max(headers - ETHERNET_BYTES, 0)
        if self.payload <= 0:
            raise topology.error(Problem(
                f"{mtu} B hold no payload beside the {headers} B of headers of stack "
                f"{stack.name!r}", path=path, found=mtu,
                allowed=f"above {headers - ETHERNET_BYTES}B"))
        self.overlay_bytes = overlay = vpc.overlay.headers if vpc and vpc.overlay else 0
        self.deviation = 1.0 if stack.deviation is None else stack.deviation.value
        self.on_line = max(self.deviation, 1.0)
        """Factor of the time on lines and at caps; no stack is faster than the line."""
        self.cap_bytes = self.on_line * (self.payload + headers) / self.payload
        self.link_bytes = self.on_line * (self.payload + headers + overlay) / self.payload
        vpc_flow = vpc.flow_rate / self.cap_bytes if vpc and vpc.flow_rate else math.inf
        self.vpc_ceiling = style.sockets * vpc_flow / 8
        self.stack_flows = style.sockets * stack.flow_rate.value / self.deviation / 8
        self.stack_ceiling = self.stack_flows
        # Switch chips hash as for UDP whatever the stack is, which only permutes the paths.
        tcp = topology.fabric.hash.function == "linux" and uses_sockets(stack.name, topology.stacks)
        self._protocol = hashes.TCP if tcp else hashes.UDP
        self.plan = SharedPlan(self._protocol)
        """Paths of what is planned."""
        self.core_s = self.deviation * (stack.cost_per_byte.value
                                        + stack.cost_per_packet.value / self.payload)
        if style.helpers and self.core_s:
            self.stack_ceiling = min(self.stack_ceiling, style.helpers / self.core_s)
        self.ceiling = min(self.stack_ceiling, self.vpc_ceiling)
        self.burst = self.payload
        if style.congestion is not None:
            self.burst = max(BURST_BYTES // self.payload, 1) * self.payload
        self.capacity = cluster.capacities(stack)
        """Of every resource of the cluster, with the stack's threads and cores."""

    @property
    def helped(self) -> bool:
        """Whether others than a process's own thread (helpers, or the NIC) move its bytes."""
        return self.style.helpers > 0 or self.core_s == 0

    @property
    def waits_for(self) -> str:
        """Reason why traffic waits, if the current links leave no path for some of it."""
        return self._waits.get(self.links.key, "")

    def paths(self, src: ArrayLike, dst: ArrayLike, channel: ArrayLike = 0) -> Paths:
        """Paths of edges from GPUs ``src`` to ``dst``, each on a ``channel``; planned together."""
        src, dst = np.asarray(src, np.int64), np.asarray(dst, np.int64)
        channel = np.broadcast_to(np.asarray(channel, np.int64), src.shape)
        host = self.cluster.host
        inner = host[src] == host[dst]
        rows: HostRows = []
        alpha_s, message_s = np.zeros(len(src)), np.zeros(len(src))
        ceiling = np.full(len(src), math.inf)
        self.add_inside(np.flatnonzero(inner), src, dst, rows, alpha_s)
        between = np.flatnonzero(~inner)
        stages = None
        if len(between):
            stages = self._between(between, src, dst, channel=channel, rows=rows, alpha_s=alpha_s,
                                   ceiling=ceiling)
            message_s[between] = self.deviation * self.stack.cost_per_message.value
        edge = np.concatenate([row[0] for row in rows])
        resource = np.concatenate([row[1] for row in rows])
        coefficient, first = np.empty(len(edge)), 0
        for some, _, cost in rows:
            coefficient[first:first + len(some)] = cost
            first += len(some)
        return Paths(edge, resource, coefficient, alpha_s, message_s, ceiling, inner, proxied=True,
                     helped=self.helped, stages=stages,
                     socket_most=self._socket_most(),
                     limits=self._limits(src, dst))

    def _socket_most(self) -> float:
        """Bytes/s of one of NCCL's sockets, which one thread serves; of other stacks any."""
        if self.style.congestion is None:
            return math.inf
        most = min(self.stack_flows, self.vpc_ceiling) / self.style.sockets
        return min(most, 1 / self.core_s) if self.style.helpers and self.core_s else most

    def _window_bytes_per_s(self, latency_s: Floats) -> Floats:
        """Bytes that the windows of an edge's sockets pass in a round trip; of other stacks any.

        The way there and back of an idle network, without the time of hosts, hence at most.
        """
        if self.style.congestion is None:
            return np.full(len(latency_s), math.inf)
        windows = self.style.sockets * WINDOW_BYTES
        return np.asarray(np.divide(windows, 2 * latency_s, where=latency_s > 0,
                                    out=np.full(len(latency_s), math.inf)))

    def _limits(self, src: Ints, dst: Ints) -> Limits | None:
        """Limits of NCCL on collectives over these edges, where NICs move the bytes."""
        if self.core_s or not len(src):
            return None
        launch, message = self.stack.launch, self.stack.cost_per_message
        kernels = launch is not None and launch.value > 0
        return Limits.of(self.cluster, np.unique(np.concatenate([src, dst])), on_line=self.on_line,
                         steps=kernels and message.value <= OVERHEAD_S)

    def add_inside(self, edge: Ints, src: Ints, dst: Ints, rows: HostRows,
                   alpha_s: Floats) -> None:
        """Add the edges within a host."""
        cluster, host = self.cluster, self.cluster.host[src[edge]]
        linked = cluster.has_nvlink[host]
        by_pcie = ~linked
        staged = by_pcie & ~cluster.peer_access[host]
        rows.append((edge[staged], cluster.blocks["memory"][cluster.memory[src[edge[staged]]]],
                     SHARED_MEMORY))
        if "switch_out" in cluster.blocks:
            up, down = cluster.gpu_switch[src[edge]], cluster.gpu_switch[dst[edge]]
            crosses = by_pcie & (staged | (up != down))
            rows.append((edge[crosses], cluster.blocks["switch_out"][up[crosses]], 1.0))
            rows.append((edge[crosses], cluster.blocks["switch_in"][down[crosses]], 1.0))
        if "numa_link_out" in cluster.blocks:
            here, there = cluster.gpu_socket[src[edge]], cluster.gpu_socket[dst[edge]]
            self._between_nodes(edge[by_pcie], here[by_pcie], there[by_pcie], rows)
        bridged = ~staged & (cluster.bridged[src[edge]]
                             | (cluster.gpu_switch[src[edge]] != cluster.gpu_switch[dst[edge]]))
        costs = np.where(bridged, HOST_BRIDGE, 1.0)[by_pcie]
        for kind, some, cost in (("nvlink", edge[linked], 1.0), ("pcie", edge[by_pcie], costs)):
            rows.append((some, cluster.blocks[f"{kind}_out"][src[some]], cost))
            rows.append((some, cluster.blocks[f"{kind}_in"][dst[some]], cost))
        alpha_s[edge] = np.where(linked, cluster.nvlink_latency_s[host],
                                 cluster.pcie_latency_s[host])

    def _between(self, edge: Ints, src: Ints, dst: Ints, *, channel: Ints, rows: HostRows,
                 alpha_s: Floats, ceiling: Floats) -> Stages:
        """Add the edges between hosts; the stages that they pass."""
        cluster = self.cluster
        sender: HostRows = []
        receiver: HostRows = []
        self.add_host(edge, src[edge], "out", channel[edge], sender)
        self.add_host(edge, dst[edge], "in", channel[edge], receiver)
        owner, link, share = self._links(edge, src, dst, channel)
        rows += sender + receiver
        rows.append((owner, cluster.blocks["link"][link], share * self.link_bytes))
        latency_s = np.zeros(len(alpha_s))
        np.add.at(latency_s, owner, share * self.links.whole.link_latency_s[link])
        latency_s[edge] += cluster.nic_latency_s[src[edge]] + cluster.nic_latency_s[dst[edge]]
        alpha_s[edge] = latency_s[edge] + self.deviation * self.stack.start_latency.value
        ceiling[edge] = np.minimum(self.ceiling, self._window_bytes_per_s(latency_s[edge]))
        link_s = 8 * self.link_bytes / self.links.whole.link_bps[link]
        links_s, slowest_link_s, sender_s, receiver_s = np.zeros((4, len(src)))
        np.add.at(links_s, owner, share * link_s)
        np.maximum.at(slowest_link_s, owner, link_s)
        sender_s[edge] = 1 / ceiling[edge]
        return Stages(self.payload, self.burst, self._slowest_s(sender, sender_s),
                      links_s, slowest_link_s, self._slowest_s(receiver, receiver_s))

    def _slowest_s(self, rows: HostRows, seconds: Floats) -> Floats:
        """Seconds a byte at the slowest of a host's resources, at least those given."""
        for edge, resource, coefficient in rows:
            np.maximum.at(seconds, edge, np.asarray(coefficient) / self.capacity[resource])
        return seconds

    def message_costs_s(self, src: int, dst: int) -> tuple[float, float]:
        """Latency of a message between hosts beside its links, and its cost of a thread."""
        stack, nic_s = self.stack, self.cluster.nic_latency_s
        return (self.deviation * stack.start_latency.value + float(nic_s[src] + nic_s[dst]),
                self.deviation * stack.cost_per_message.value)

    def add_host(self, edge: Ints, gpu: Ints, way: str, channel: Ints,
                 rows: HostRows) -> None:
        """Add what edges use of the host that they leave ("out") or reach ("in") by ``gpu``."""
        cluster, blocks = self.cluster, self.cluster.blocks
        host = cluster.host[gpu]
        vnic = cluster.vnic[gpu] + channel % cluster.own_vnics[gpu]
        rows.append((edge, blocks[f"pcie_{way}"][gpu], 1.0))
        if self.core_s:
            if not self.style.helpers:
                rows.append((edge, blocks["thread"][gpu], self.core_s))
            rows.append((edge, blocks["cores"][host], self.core_s))
        if self.stack.memory_per_byte.value:
            rows.append((edge, blocks["memory"][cluster.memory[gpu]],
                         self.deviation * self.stack.memory_per_byte.value))
        if "switch_out" in blocks:
            self._through_switches(edge, gpu, way, rows)
        if "numa_link_out" in blocks:
            nodes = cluster.gpu_node[gpu], cluster.memory[gpu]
            self._between_nodes(edge, *(nodes if way == "out" else nodes[::-1]), rows)
        for kind, member, cost in ((f"vnic_{way}", vnic, self.cap_bytes),
                                   (f"host_{way}", host, self.cap_bytes),
                                   (f"packets_{way}", host, 1 / self.payload)):
            if kind in blocks:
                rows.append((edge, blocks[kind][member], cost))

    def _through_switches(self, edge: Ints, gpu: Ints, way: str, rows: HostRows) -> None:
        """Add the uplinks of PCIe switches between a GPU and its NIC.

        RDMA between a GPU and a NIC of one switch stays below it; all else goes by the host.
        """
        cluster, blocks = self.cluster, self.cluster.blocks
        ups, downs = cluster.gpu_switch[gpu], cluster.nic_switch[gpu]
        if way == "in":
            ups, downs = downs, ups
        crosses = (ups != downs) | (self.stack.memory_per_byte.value > 0)
        rows.append((edge[crosses], blocks["switch_out"][ups[crosses]], 1.0))
        rows.append((edge[crosses], blocks["switch_in"][downs[crosses]], 1.0))

    def _between_nodes(self, edge: Ints, here: Ints, there: Ints,
                       rows: HostRows) -> None:
        """Add the links between NUMA nodes of edges that go from one node to another."""
        blocks, crosses = self.cluster.blocks, here != there
        rows.append((edge[crosses], blocks["numa_link_out"][here[crosses]], 1.0))
        rows.append((edge[crosses], blocks["numa_link_in"][there[crosses]], 1.0))

    def flows(self, edge: Ints, src: Ints, dst: Ints, channel: Ints) -> tuple[Ints, Flows]:
        """Flows of the edges numbered ``edge``: the edge of each, and its hashed headers."""
        sockets = self.style.sockets
        owner = np.repeat(edge, sockets)
        socket = np.tile(np.arange(sockets), len(edge))
        a, b = (self._endpoint(gpu, channel[owner]) for gpu in (src[owner], dst[owner]))
        ports = self._source_port(src[owner], dst[owner], channel[owner], socket)
        return owner, self.links.fabric.flows(a, b, ports, proto=self._protocol)

    def over_links(self, route: Callable[[Fabric], Routed]) -> Routed:
        """Route over the links that are up, or else over those that will be up again."""
        try:
            return route(self.links.fabric)
        except UnreachableError as error:
            reason = str(error)
        try:
            routed = route(self.links.lasting)
        except UnreachableError as error:
            raise CutOffError(str(error)) from error
        self._waits[self.links.key] = reason
        return routed

    def _links(self, edge: Ints, src: Ints, dst: Ints, channel: Ints) -> Rows:
        """Rows (edge, fabric link, share of the edge's bytes).

        Kept while all links are up: the simulations of one draw, and all fits, ask for the same.
        """
        def found() -> Rows:
            owner, flows = self.flows(edge, src, dst, channel)
            return self.over_links(lambda fabric: self._routed(fabric, owner, flows))

        if self.style.routing == "plan" or self.links.key or len(edge) > KEPT_EDGES:
            return found()
        known = _kept.setdefault(self.cluster, {})
        key = (self.seed, self._protocol, self.style.routing, self.style.sockets, self.style.bond,
               *(part.tobytes() for part in (edge, src, dst, channel)))
        if key not in known:
            if len(known) == KEPT_ROUTES:
                known.clear()
            known[key] = found()
        return known[key]

    def _endpoint(self, gpu: Ints, channel: Ints) -> Ints:
        """The NIC of each GPU on a channel; of a GPU with several the next one each time.

        Rings begin at another GPU on each channel, so a GPU comes to send on every ``rails``-th
        channel only: without the step after each common multiple it would stay with one NIC.
        """
        own = self.cluster.own_nics[gpu]
        turn = channel + channel // np.lcm(own, self._rails)
        return np.asarray(self.cluster.endpoint[gpu] + turn % own)

    def announce_plan(self, plan: Plan, placement: Sequence[Ints]) -> None:
        """Announce a plan before anything runs, so that its paths are planned with all others.

        Only pipelines are announced: their edges stay the same.
        """
        for phase in plan.phases():
            if phase.pipelined:
                self.announce(*edges_on_channels(phase, placement))

    def announce(self, src: Ints, dst: Ints, channel: Ints) -> None:
        """Announce edges, so that paths are planned for all of them together."""
        outer = np.flatnonzero(self.cluster.host[src] != self.cluster.host[dst])
        owner = np.repeat(outer, self.style.sockets)
        self.plan.announce(*(self._endpoint(gpu[owner], channel[owner]) for gpu in (src, dst)))

    def planned_paths(self, fabric: Fabric, flows: Flows) -> PlannedPaths | None:
        """The path of each flow; None where flows are hashed."""
        if self.style.routing != "plan":
            return None
        return self.plan.paths(fabric, flows.src.astype(np.int64), flows.dst.astype(np.int64))

    def bond_policies(self, endpoint: Ints) -> list[str]:
        """Policy of each endpoint's bond."""
        return [self._policies[number] for number in self._bonds[endpoint].tolist()]

    def _routed(self, fabric: Fabric, owner: Ints, flows: Flows) -> Rows:
        planned = self.planned_paths(fabric, flows)
        if planned is not None:
            flow, hop = np.nonzero(planned.links >= 0)
            share = np.full(len(flow), 1.0 / self.style.sockets)
            return owner[flow], planned.links[flow, hop], share
        vpc = self.cluster.topology.vpc
        if vpc is not None and vpc.overlay is not None:
            flows = encapsulate(fabric, flows, vpc.overlay.hash)
        if len(self._policies) == 1:
            return self._bonded(fabric, owner, flows, self._policies[0])
        parts = []
        for number, policy in enumerate(self._policies):
            some = np.flatnonzero(self._bonds[flows.src] == number)
            parts.append(self._bonded(fabric, owner[some], flows.take(some), policy))
        return (np.concatenate([rows[0] for rows in parts]),
                np.concatenate([rows[1] for rows in parts]),
                np.concatenate([rows[2] for rows in parts]))

    def _bonded(self, fabric: Fabric, owner: Ints, flows: Flows, policy: str) -> Rows:
        """Let bonds of one policy and then the switches hash (or spray) the flows."""
        if policy == DYNAMIC:
            split = bond.split(fabric, flows)
            ptr, link, share = self._walk(fabric, split.flows, split.port)
            weight = self._delivered(fabric, ptr, link, split.parent)
            owner = owner[split.parent]
        else:
            port = bond.choose(fabric, flows, policy)  # type: ignore[arg-type]
            ptr, link, share = self._walk(fabric, flows, port)
            weight = np.ones(len(owner))
        flow = np.repeat(np.arange(len(owner)), np.diff(ptr))
        return owner[flow], link, share * weight[flow] / self.style.sockets

    def _walk(self, fabric: Fabric, flows: Flows, port: Ints) -> tuple[Ints, Ints, Floats]:
        """Links of each flow (CSR) and the share of its bytes on each."""
        if self.style.routing == "spray":
            ptr, link, share = fabric.route_spray(flows, port)
            return ptr, link.astype(np.int64), share
        hops, crossed = fabric.route(flows, port)
        return hops, crossed.astype(np.int64), np.ones(len(crossed))

    def _delivered(self, fabric: Fabric, ptr: Ints, link: Ints, parent: Ints) -> Floats:
        """Weights of a dynamic bond's parts: in proportion to what each delivers when alone.

        It is where `bond.update_weights` settles.
        """
        rate = np.minimum.reduceat((fabric.link_bps * self.links.known)[link], ptr[:-1])
        return np.asarray(rate / np.bincount(parent, rate)[parent])

    def _bond_of_nics(self) -> tuple[list[str], Ints]:
        """Bond policies in use, and which of them each endpoint has; one port is no bond."""
        groups = [group for group in self.cluster.topology.hosts for _ in range(group.count)]
        bonds = [(self.style.bond or nic.bond) if nic.ports > 1 else "none"
                 for group in groups for nic in group.nics for _ in range(nic.count)]
        policies, numbers = np.unique(bonds, return_inverse=True)
        return policies.tolist(), numbers

    def _source_port(self, src: Ints, dst: Ints, channel: Ints, socket: Ints) -> NDArray[np.uint16]:
        """Ports as a kernel would hand them out: any, but the same in every run."""
        words = np.stack([src, dst, channel, socket], axis=1).astype(np.uint64)
        mixed = np.full(len(src), self.seed + 0x9E3779B9, np.uint64)
        for column in words.T:  # a 64-bit mix of four numbers (splitmix64's finaliser)
            mixed = (mixed ^ column) * np.uint64(0xBF58476D1CE4E5B9)
            mixed ^= mixed >> np.uint64(27)
        port = hashes.FIRST_DYNAMIC_PORT + mixed % np.uint64(hashes.DYNAMIC_PORTS_N)
        return port.astype(np.uint16)
