"""A topology as numbered resources with capacities, and the resources of each GPU.

Resources form blocks: the fabric's directed links (numbered as in `harp.routing.fabric`), then for
each GPU its links into and out of the host's GPU fabric and of PCIe, for each vNIC and host the
caps of the VPC, for each process the threads that drive its network, for each NUMA node its memory,
and for each host the cores that all those threads share. Capacities are bytes/s, packets/s for
packet caps, and cores for threads and cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from harp.routing import templates
from harp.routing.templates import Cable, Endpoints, SwitchHash, Wires
from sim.cluster.device_places import Devices, place_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

    from harp.routing.fabric import Fabric
    from sim.schema.hosts import HostGroup
    from sim.schema.network_keys import Explicit
    from sim.schema.parameters import HostStack
    from sim.schema.topology_model import Topology

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


_NO_LIMIT = 1e18
"""Bytes/s of what a host does not have where others do."""


@dataclass(frozen=True)
class Block:
    """Consecutive resources of one kind; ``name(i)`` names the i-th of them."""

    kind: str
    first: int
    capacity: Floats
    name: Callable[[int], str]

    def __getitem__(self, index: ArrayLike) -> Ints:
        """Resource numbers of members of the block."""
        return self.first + np.asarray(index, np.int64)


class Cluster:
    """Hosts, GPUs, fabric and resources of one topology.

    Attributes:
        fabric: the graph; its endpoints are the NICs in order of host and NIC.
        host, local, endpoint, vnic: int64[gpus]; host, index within the host, fabric endpoint and
            vNIC of each GPU; GPUs are numbered host by host, which is the order of ranks.
        memory, gpu_node, gpu_switch, nic_switch: int64[gpus]; NUMA node of each GPU's NIC, where
            the buffers of its traffic lie, and of the GPU, and PCIe switch of the GPU and of its
            NIC, all hosts' in a row.
        gpu_socket: int64[gpus]; NUMA node of each GPU towards the other GPUs of its host, over
            which they are spread evenly where the file does not place them.
        bridged: bool[gpus]; whether all that a GPU sends to others crosses the host's bridge.
        nic_latency_s: float64[gpus]; from each GPU to its NIC.
        own_nics, own_vnics: int64[gpus]; NICs and vNICs that only this GPU uses, from ``endpoint``
            and ``vnic`` on; its channels take turns on them.
        flops: float64[gpus], sustained FLOP/s.
        moved: float64[gpus], bytes/s of each GPU's memory, infinite where ``flops`` is for all
            kernels.
        blocks: resources by kind; a cap that the file does not give has no block.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        groups = [group for group in topology.hosts for _ in range(group.count)]
        gpus = np.array([group.gpus.count for group in groups])
        nics = np.array([len(group.nic_names) for group in groups])
        self.hosts = len(groups)
        self._host_names = topology.host_names
        self.host = np.repeat(np.arange(self.hosts), gpus)
        self.local = np.arange(len(self.host)) - np.repeat(np.cumsum(gpus) - gpus, gpus)
        vnics = topology.vpc.vnics if topology.vpc else 1
        self.vnic = self.host * vnics + self.local * vnics // gpus[self.host]
        self.own_vnics = np.maximum((self.local + 1) * vnics // gpus[self.host]
                                    - self.local * vnics // gpus[self.host], 1)
        devices = Devices(*map(np.concatenate, zip(*(
            place for group in topology.hosts
            for place in [place_devices(group)] * group.count), strict=True)))
        self.endpoint = _number(nics, self.host, devices.nic)
        self.own_nics = devices.own_nics
        nodes = np.array([group.numa_nodes for group in groups])
        self.memory = _number(nodes, self.host, devices.nic_node)
        self.gpu_node = _number(nodes, self.host, devices.gpu_node)
        spread = self.local * nodes[self.host] // gpus[self.host]
        placed = np.array([group.affinity is not None for group in groups])[self.host]
        self.gpu_socket = np.where(placed, self.gpu_node, _number(nodes, self.host, spread))
        switches = np.array([group.pcie_switches or 1 for group in groups])
        self.gpu_switch = _number(switches, self.host, devices.gpu_switch)
        self.nic_switch = _number(switches, self.host, devices.nic_switch)
        crossing_s = np.array([group.socket_link.latency for group in groups])[self.host]
        self.nic_latency_s = (np.array([g.pcie_link.latency for g in groups])[self.host]
                              + crossing_s * (self.gpu_node != self.memory))
        self.flops = self.flops_at(topology.workload.precision)
        self.moved = np.repeat([group.gpus.moved for group in topology.hosts],
                               [group.count * group.gpus.count for group in topology.hosts])
        self.fabric = build_fabric(topology)
        self.bridged = np.array([not group.pcie_switches for group in groups])[self.host]
        self.peer_access = np.array([group.peer_access for group in groups])
        self.has_nvlink = np.array([group.nvlink is not None for group in groups])
        self.nvlink_latency_s = np.array([g.nvlink.latency if g.nvlink else 0.0 for g in groups])
        self.pcie_latency_s = np.array([g.pcie_link.latency for g in groups])
        self.cores = np.array([float(group.cores) for group in groups])
        self.blocks: dict[str, Block] = {}
        self._count = 0
        self._add_blocks(vnics)

    def flops_at(self, precision: str) -> Floats:
        """FLOP/s of each GPU that its kernels sustain at a precision."""
        groups = self.topology.hosts
        each = [_flops(self.topology, group, precision) for group in groups]
        return np.repeat(each, [group.count * group.gpus.count for group in groups])

    def _add(self, kind: str, capacity: Floats, name: Callable[[int], str]) -> None:
        self.blocks[kind] = Block(kind, self._count, capacity, name)
        self._count += len(capacity)

    def _add_blocks(self, vnics: int) -> None:
        topology = self.topology
        groups = [group for group in topology.hosts for _ in range(group.count)]
        nvlink = np.array([g.nvlink.rate if g.nvlink else g.pcie_link.rate for g in groups]) / 8
        pcie = np.array([g.pcie_link.rate for g in groups]) / 8
        self._add("link", self.fabric.link_bps / 8, self.fabric.cable_name)
        for kind, per_host in (("nvlink", nvlink), ("pcie", pcie)):
            for way in ("out", "in"):
                self._add(f"{kind}_{way}", per_host[self.host],
                          partial(self._way_of_gpu, f"{kind} {way}"))
        vpc = topology.vpc
        if vpc is None:
            vpc_caps: list[tuple[str, float | None, int]] = []
        else:
            vpc_caps = [("vnic", vpc.vnic_rate, vnics), ("host", vpc.host_rate, 1)]
        for kind, rate, each in vpc_caps:
            if rate is not None:
                for way in ("out", "in"):
                    self._add(f"{kind}_{way}", np.full(self.hosts * each, rate / 8),
                              partial(self._cap_of_host, kind, way, each))
        if vpc is not None and vpc.packet_rate is not None:
            for way in ("out", "in"):
                self._add(f"packets_{way}", np.full(self.hosts, vpc.packet_rate),
                          partial(self._cap_of_host, "packets", way, 1))
        self._add_host_blocks(groups)

    def _add_host_blocks(self, groups: Sequence[HostGroup]) -> None:
        """Add threads, memory, cores and PCIe switches."""
        self._add("thread", np.ones(len(self.host)), partial(self._way_of_gpu, "network thread"))
        nodes = [(host, node) for host, group in enumerate(groups)
                 for node in range(group.numa_nodes)]
        self._add("memory", np.repeat([group.memory_rate / 8 for group in groups],
                                      [group.numa_nodes for group in groups]),
                  partial(self._part_name, "memory{}", nodes))
        crossed = [_crosses_sockets(group) for group in groups]
        if any(crossed):
            joins = np.repeat([group.socket_link.rate / 8 if crosses else _NO_LIMIT
                               for group, crosses in zip(groups, crossed, strict=True)],
                              [group.numa_nodes for group in groups])
            for way in ("out", "in"):
                self._add(f"numa_link_{way}", joins,
                          partial(self._part_name, f"NUMA link{{}} {way}", nodes))
        self._add("cores", self.cores.copy(), partial(self._cap_of_host, "stack", "cores", 1))
        if any(group.pcie_switches for group in groups):
            switches = [(host, switch) for host, group in enumerate(groups)
                        for switch in range(group.pcie_switches or 1)]
            uplink = np.array([groups[host].pcie_link.rate / 8 if groups[host].pcie_switches
                               else _NO_LIMIT for host, _ in switches])
            for way in ("out", "in"):
                self._add(f"switch_{way}", uplink,
                          partial(self._part_name, f"PCIe switch{{}} {way}", switches))

    def _part_name(self, what: str, parts: Sequence[tuple[int, int]], member: int) -> str:
        host, number = parts[member]
        return f"{self._host_names[host]}/{what.format(number)}"

    def _way_of_gpu(self, what: str, gpu: int) -> str:
        return f"{self.gpu_name(gpu)} {what}"

    def _cap_of_host(self, kind: str, way: str, each: int, member: int) -> str:
        number = member % each if each > 1 else ""
        return f"{self._host_names[member // each]}/{kind}{number} {way}"

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return len(self.host)

    def gpu_name(self, gpu: int) -> str:
        """``host/gpuN`` of a GPU."""
        return f"{self._host_names[self.host[gpu]]}/gpu{self.local[gpu]}"

    def resource_name(self, resource: int) -> str:
        """A name for the reader."""
        for block in self.blocks.values():
            if block.first <= resource < block.first + len(block.capacity):
                return block.name(resource - block.first)
        raise IndexError(f"no resource {resource}")

    def capacities(self, stack: HostStack) -> Floats:
        """Capacity of every resource with the threads and cores that ``stack`` has."""
        capacity = np.concatenate([block.capacity for block in self.blocks.values()])
        capacity[self.blocks["thread"][np.arange(self.gpus)]] = stack.threads.value
        if stack.cores is not None:
            cores = self.blocks["cores"][np.arange(self.hosts)]
            capacity[cores] = np.minimum(self.cores, stack.cores.value)
        return capacity


def _crosses_sockets(group: HostGroup) -> bool:
    """Whether traffic of GPUs may cross from one NUMA node to another."""
    several = group.numa_nodes > 1 and group.gpus.count > 1
    return group.affinity is not None or (several and group.nvlink is None)


def _number(parts: Ints, host: Ints, part: Ints) -> Ints:
    """Number, through all hosts, of a part of each GPU's host; there are ``parts`` on each host."""
    return np.asarray((np.cumsum(parts) - parts)[host] + part)


def _flops(topology: Topology, group: HostGroup, precision: str) -> float:
    """FLOP/s of a group's GPUs, from the samples/s of the file's workload where these are given."""
    sustained = group.gpus.sustained(precision)
    if sustained is not None:
        return sustained
    assert group.gpus.samples_per_s is not None
    layers = topology.workload.network.layers
    each = sum(layer.forward_flops + layer.backward_flops for layer in layers)
    return group.gpus.samples_per_s * each


def build_fabric(topology: Topology) -> Fabric:
    """The fabric of a topology; raises the file's own error where the template does not fit."""
    from sim.schema.input_errors import Problem

    try:
        return _build_fabric(topology)
    except ValueError as error:
        raise topology.error(Problem(str(error), path=("fabric",))) from error


def _endpoints(topology: Topology) -> Endpoints:
    names: list[str] = []
    hosts: list[int] = []
    nics: list[int] = []
    ports: list[int] = []
    rates: list[float] = []
    number = 0
    for group in topology.hosts:
        each = [nic for nic in group.nics for _ in range(nic.count)]
        for host in group.names:
            names += [f"{host}/{nic}" for nic in group.nic_names]
            hosts += [number] * len(each)
            nics += range(len(each))
            ports += [nic.ports for nic in each]
            rates += [nic.rate for nic in each]
            number += 1
    return Endpoints(tuple(names), np.array(hosts, np.int32), np.array(nics, np.int32),
                     np.array(ports, np.int32), np.array(rates))


def _build_fabric(topology: Topology) -> Fabric:
    shape, endpoints = topology.fabric, _endpoints(topology)
    rate = shape.rate if shape.rate is not None else float(endpoints.bps.max())
    switch_hash = SwitchHash(shape.hash.function, shape.hash.seed == "per-switch", topology.seed)
    wires = Wires(rate, shape.latency, switch_hash)
    kind = getattr(shape, "template", "explicit")
    if kind == "single-switch":
        return templates.single_switch(endpoints, wires=wires)
    if kind == "explicit":
        return _explicit(shape, endpoints, wires)  # type: ignore[arg-type]
    skipped = {"template", "rate", "latency", "mtu", "hash", "switch", "hosts_per_leaf",
               "hosts_per_pair"}
    sizes = {key: value for key, value in shape if key not in skipped}
    if kind == "rail":
        sizes["hosts_per_leaf"] = getattr(shape, "hosts_per_leaf", None) or endpoints.hosts
    build = {"leaf-spine": templates.leaf_spine, "rail": templates.rail,
             "clos3": templates.clos3, "dual-tor": templates.dual_tor}[kind]
    return build(endpoints, wires=wires, **sizes)  # type: ignore[operator,no-any-return]


def _explicit(shape: Explicit, endpoints: Endpoints, wires: Wires) -> Fabric:
    devices = [device.name for device in shape.devices]
    known = set(devices)
    cables, host_links = [], []
    for link in shape.links:
        if link.source in known and link.target in known:
            cables.append(Cable(link.source, link.target, link.rate or wires.rate_bps,
                                wires.latency_s if link.latency is None else link.latency,
                                link.count))
        else:
            port, device = ((link.target, link.source) if link.source in known
                            else (link.source, link.target))
            nic, _, index = port.partition(".")
            host_links.append((nic, int(index or 0), device))
    return templates.explicit(endpoints, devices=devices, cables=cables, host_links=host_links,
                              wires=wires)
