"""A topology as an InfraGraph infrastructure, with annotations for all that it has no place for.

A host group becomes a device and an instance: ``xpu`` and ``cpu`` components, one of each kind of
NIC, ``nvsw`` where GPUs have a fabric of their own, and ``<nic>-port`` where a NIC has several.
Every switch is an instance of its own, of a device with as many ports as it has cables. Each cable
is an edge with a port of its own at the switch, since InfraGraph's graph makes one edge of two
between the same components.

The annotations hold the topology file's keys as JSON (``harp.topology``), from which
`sim.formats.infragraph_import` makes the same file again, and the rank of each GPU (``rank``, as
astra-sim-service's RankAssignment).
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from sim.cluster.cluster import build_fabric
from sim.formats.infragraph_schema import VERSION
from sim.schema.input_errors import Problem, show

if TYPE_CHECKING:
    from harp.routing.fabric import Fabric
    from sim.schema.hosts import HostGroup, Nic
    from sim.schema.hosts import Link as HostLink
    from sim.schema.topology_model import Topology

TOPOLOGY = "harp.topology"
MADE_FOR = "harp.infragraph"
"""The version of InfraGraph that annotations are made for."""
RESERVED = ("xpu", "cpu", "nvsw")

Plain = dict[str, Any]


def infrastructure_of(topology: Topology) -> Plain:
    """The infrastructure as plain data; raises TopologyError."""
    fabric = build_fabric(topology)
    switches, cables = _cables(topology, fabric)
    links, edges = _edges(fabric, cables)
    ports = {name: count for name, count in switches.items() if count}
    return {
        "name": topology.name, "description": topology.description,
        "devices": [*(_host(topology, group) for group in topology.hosts),
                    *(_switch(count) for count in sorted(set(ports.values())))],
        "links": links,
        "instances": [
            *({"name": group.name, "device": group.name, "count": group.count}
              for group in topology.hosts),
            *({"name": name, "device": _switch_name(count), "count": 1}
              for name, count in ports.items())],
        "edges": edges}


def annotations_of(topology: Topology) -> Plain:
    """Data that the infrastructure has no place for."""
    nodes, rank = [], 0
    for group in topology.hosts:
        for host in range(group.count):
            for gpu in range(group.gpus.count):
                nodes.append({"name": f"{group.name}.{host}.xpu.{gpu}",
                              "attributes": [{"attribute": "rank", "value": str(rank)}]})
                rank += 1
    return {"nodes": nodes, "graph": [
        {"attribute": MADE_FOR, "value": VERSION},
        {"attribute": TOPOLOGY, "value": json.dumps(topology.plain, ensure_ascii=False)}]}


def _link(name: str, bits_per_s: float, latency_s: float) -> Plain:
    return {"name": name, "physical": {
        "bandwidth": {"choice": "gigabits_per_second", "gigabits_per_second": bits_per_s / 1e9},
        "latency": {"choice": "us", "us": round(latency_s * 1e6, 9)}}}


def _host(topology: Topology, group: HostGroup) -> Plain:
    names = [nic.name for nic in group.nics]
    for number, nic in enumerate(group.nics):
        if nic.name in RESERVED or names.index(nic.name) < number:
            raise topology.error(Problem(
                f"{show(nic.name)} is the name of another component in InfraGraph",
                path=("hosts", topology.hosts.index(group), "nics", number, "name"),
                allowed="a name of its own, other than xpu, cpu, nvsw"))
    components = [{"name": "cpu", "count": group.numa_nodes, "choice": "cpu"},
                  {"name": "xpu", "description": group.gpus.model, "count": group.gpus.count,
                   "choice": "xpu"}]
    links = [_inside("pcie", group.pcie_link)]
    edges = [_joined("xpu", "cpu", "pcie")]
    if group.nvlink is not None:
        components.append({"name": "nvsw", "count": 1, "choice": "switch"})
        links.append(_inside("nvlink", group.nvlink))
        edges.append(_joined("xpu", "nvsw", "nvlink"))
    for nic in group.nics:
        components.append({"name": nic.name, "count": nic.count, "choice": "nic"})
        edges.append(_joined(nic.name, "cpu", "pcie"))
        if nic.ports > 1:
            components.append({"name": f"{nic.name}-port", "count": nic.count * nic.ports,
                               "choice": "port"})
            edges += [_joined(f"{nic.name}[{number}]", _slice(nic, number), "pcie")
                      for number in range(nic.count)]
    return {"name": group.name, "components": components, "links": links, "edges": edges}


def _slice(nic: Nic, number: int) -> str:
    return f"{nic.name}-port[{number * nic.ports}:{(number + 1) * nic.ports}]"


def _inside(name: str, link: HostLink) -> Plain:
    return _link(name, link.rate, link.latency)


def _joined(one: str, other: str, link: str) -> Plain:
    return {"ep1": {"component": one}, "ep2": {"component": other}, "scheme": "many2many",
            "link": link}


def _switch_name(ports: int) -> str:
    return f"switch-{ports}"


def _switch(ports: int) -> Plain:
    return {"name": _switch_name(ports), "components": [
                {"name": "asic", "count": 1, "choice": "cpu"},
                {"name": "port", "count": ports, "choice": "port"}],
            "links": [{"name": "ic"}], "edges": [_joined("asic", "port", "ic")]}


def _cables(topology: Topology, fabric: Fabric) -> tuple[dict[str, int],
                                                         list[tuple[int, Plain, Plain]]]:
    """Ports of each switch, and of each cable its outgoing link and both ends."""
    ends = _host_ends(topology, fabric)
    groups = [group.name for group in topology.hosts]
    plain = [name.replace(".", "_") for name in fabric.switches]
    names = [f"{name}-switch" if name in groups else name for name in plain]
    if len({*names, *groups}) < len(names) + len(groups):
        raise topology.error(Problem("two devices or host groups have one name in InfraGraph",
                                     path=("fabric",), allowed="names that differ by more than "
                                     "a dot"))
    if any("." in name for name in groups):
        raise topology.error(Problem("InfraGraph's names have no dot", path=("hosts",),
                                     allowed="names of host groups without dots"))
    used: dict[str, int] = dict.fromkeys(names, 0)
    cables = []
    for link in range(0, len(fabric.link_src), 2):
        found = []
        for node, way in ((int(fabric.link_src[link]), link), (int(fabric.link_dst[link]),
                                                                link + 1)):
            if node < len(names):
                found.append({"instance": f"{names[node]}[0]",
                              "component": f"port[{used[names[node]]}]"})
                used[names[node]] += 1
            else:
                found.append(ends[way])
        cables.append((link, found[0], found[1]))
    return used, cables


def _host_ends(topology: Topology, fabric: Fabric) -> dict[int, Plain]:
    """Component of a host by the number of the link that leaves it."""
    ends, endpoint = {}, 0
    for group in topology.hosts:
        for host in range(group.count):
            for nic in group.nics:
                for number in range(nic.count):
                    for port in range(nic.ports):
                        component = (f"{nic.name}[{number}]" if nic.ports == 1 else
                                     f"{nic.name}-port[{number * nic.ports + port}]")
                        ends[int(fabric.endpoint_ports[endpoint, port])] = {
                            "instance": f"{group.name}[{host}]", "component": component}
                    endpoint += 1
    return ends


def _edges(fabric: Fabric,
           cables: list[tuple[int, Plain, Plain]]) -> tuple[list[Plain], list[Plain]]:
    kinds: dict[tuple[float, float], str] = defaultdict(lambda: f"cable{len(kinds)}")
    edges = []
    for link, one, other in cables:
        kind = kinds[float(fabric.link_bps[link]), float(fabric.link_latency_s[link])]
        edges.append({"ep1": one, "ep2": other, "scheme": "one2one", "link": kind})
    return [_link(name, *figures) for figures, name in kinds.items()], edges
