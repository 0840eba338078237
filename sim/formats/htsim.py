"""A topology as the fat tree that htsim reads (``.topo``).

A first part counts nodes, tiers and the nodes of a pod; then each tier gives the rate and latency
of the links below its switches and how many each has down and up (Broadcom/csg-htsim,
datacenter/fat_tree_topology.cpp, and the topologies beside it). htsim has two or three tiers of
equal switches, whole Gb/s and nanoseconds, so fabrics `leaf-spine` and `clos3` can be written where
hosts fill their leaves. Nodes are the NICs in the order of the topology file, one a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sim.formats.one_nic_a_gpu import check_nics
from sim.schema.input_errors import Problem
from sim.schema.network_keys import Clos3, LeafSpine

if TYPE_CHECKING:
    from sim.schema.topology_model import Topology


class _Tier(NamedTuple):
    """Links below the switches of a tier, and how many each has."""

    bits_per_s: float
    down: int
    up: int = 0


def htsim_topology(topology: Topology) -> str:
    """Text of the file; raises TopologyError for what htsim does not have."""
    fabric = topology.fabric
    if not isinstance(fabric, LeafSpine | Clos3):
        kind = getattr(fabric, "template", "explicit")
        raise topology.error(Problem(f"htsim has no {kind}", path=("fabric",),
                                     allowed="leaf-spine, clos3"))
    check_nics(topology, "htsim")
    if fabric.links > 1:
        raise topology.error(Problem(f"{fabric.links} parallel links", path=("fabric", "links"),
                                     found=fabric.links, allowed="1 in htsim"))
    rates = {nic.rate for group in topology.hosts for nic in group.nics}
    nodes = topology.gpu_count
    leaves = fabric.leaves * (fabric.pods if isinstance(fabric, Clos3) else 1)
    each = {group.gpus.count for group in topology.hosts}
    if len(rates) > 1 or len(each) > 1 or len(topology.host_names) % leaves:
        raise topology.error(Problem(f"hosts do not fill {leaves} leaves alike", path=("hosts",),
                                     allowed="in htsim equal hosts, as many on each leaf"))
    access, between = rates.pop(), fabric.rate
    between = access if between is None else between
    if isinstance(fabric, Clos3):
        pod = nodes // fabric.pods
        tiers = [_Tier(access, nodes // leaves, fabric.aggs),
                 _Tier(between, fabric.leaves, fabric.cores // fabric.aggs),
                 _Tier(between, fabric.pods)]
    else:
        pod, tiers = nodes, [_Tier(access, nodes // leaves, fabric.spines),
                             _Tier(between, leaves)]
    lines = [f"Nodes {nodes}", f"Tiers {len(tiers)}", f"Podsize {pod}"]
    latency_ns = _whole(topology, fabric.latency * 1e9, "latency", "whole nanoseconds")
    for number, tier in enumerate(tiers):
        speed = _whole(topology, tier.bits_per_s / 1e9, "rate", "whole Gb/s")
        lines += ["", f"Tier {number}", f"Downlink_speed_Gbps {speed}",
                  f"Radix_Down {tier.down}", *([f"Radix_Up {tier.up}"] if tier.up else []),
                  f"Downlink_Latency_ns {latency_ns}", "Switch_Latency_ns 0"]
        if tier.up:
            lines += _oversubscribed(tier, tiers[number + 1])
    return "\n".join(lines) + "\n"


def _oversubscribed(tier: _Tier, above: _Tier) -> list[str]:
    """How many times more may come from below than leaves above, where that is whole."""
    ratio = tier.down * tier.bits_per_s / (tier.up * above.bits_per_s)
    return [f"Oversubscribed {ratio:.0f}"] if ratio > 1 and ratio.is_integer() else []


def _whole(topology: Topology, value: float, key: str, allowed: str) -> int:
    if abs(value - round(value)) > 1e-6 * max(value, 1.0):
        raise topology.error(Problem(f"htsim has no {value:g}", path=("fabric", key),
                                     allowed=allowed))
    return round(value)
