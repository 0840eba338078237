"""Limits on the size of a simulation, checked before anything is built.

A few sizes decide what a simulation takes in memory and time, and each has one limit. At a limit an
answer takes some seconds, or of experts a minute, and less than 2 GB; beyond it the user gets a
sentence instead. How long a simulation goes on is unknown beforehand: `sim.answer.scenario` counts
events while it runs.
"""

from collections.abc import Iterator

from sim.schema.input_errors import Path, Problem
from sim.schema.nccl_defaults import channel_count, connection, peer_channels
from sim.schema.network_keys import Clos3, DualTor, Explicit, LeafSpine, Rail
from sim.schema.scenario_keys import Scenario
from sim.schema.topology_model import Topology

MOST_RESOURCES = 1 << 20
"""Links, caps and paths of GPUs that flows can use up: 16,384 hosts of 8 GPUs have 0.7 million."""
MOST_NEXT_HOPS = 1 << 28
"""Links between switches times leaves: routing asks of each link which leaves it leads to."""
MOST_FLOWS = 1 << 20
"""Flows at once in one collective: an all-to-all over 1,024 GPUs."""
MOST_EXCHANGED = 1 << 26
"""Flows of all exchanges of experts in the steps of a scenario, a microsecond each: those of a
dozen layers over 1,024 GPUs take a minute."""
MOST_LISTED = 128
"""GPUs of a plan that lists the tokens of each for each host: some 100 MB of rows."""


def check_resources(topology: Topology) -> Iterator[Problem]:
    """Whether the cluster and its fabric are too large."""
    parts: dict[Path, int] = {("hosts",): _host_resources(topology),
                              ("fabric",): 2 * _cables(topology)}
    vpc = topology.vpc
    if vpc is not None and vpc.vnic_rate is not None:
        parts["vpc", "vnics"] = sum(group.count for group in topology.hosts) * 2 * vpc.vnics
    total = sum(parts.values())
    if total > MOST_RESOURCES:
        largest = max(parts, key=parts.__getitem__)
        yield Problem(f"{total:,} resources (links and caps of hosts and GPUs)", path=largest,
                      allowed=f"at most {MOST_RESOURCES:,}; this part of the file alone makes "
                      f"{parts[largest]:,}")
    links, leaves = parts["fabric",], _leaves(topology)
    if links * leaves > MOST_NEXT_HOPS:
        yield Problem(f"{links:,} links between switches and {leaves:,} leaves",
                      path=("fabric",), allowed=f"a product of at most {MOST_NEXT_HOPS:,}")


def _host_resources(topology: Topology) -> int:
    """Ports in both directions, five paths of each GPU, and what VPC, cores and memory limit."""
    return sum(group.count * (2 * sum(group.nic_ports) + 5 * group.gpus.count + 5
                              + group.numa_nodes * (3 if group.affinity else 1)
                              + 2 * (group.pcie_switches or 0))
               for group in topology.hosts)


def _cables(topology: Topology) -> int:
    """Cables between switches."""
    fabric = topology.fabric
    if isinstance(fabric, LeafSpine):
        return fabric.leaves * fabric.spines * fabric.links
    if isinstance(fabric, Clos3):
        return fabric.pods * (fabric.leaves * fabric.aggs * fabric.links + fabric.cores)
    if isinstance(fabric, Rail | DualTor):
        return _leaves(topology) * fabric.spines * fabric.links
    if isinstance(fabric, Explicit):
        return sum(link.count for link in fabric.links)
    return 0


def _leaves(topology: Topology) -> int:
    """Groups of switches with hosts that routing distinguishes."""
    fabric = topology.fabric
    if isinstance(fabric, LeafSpine):
        return fabric.leaves
    if isinstance(fabric, Clos3):
        return fabric.pods * fabric.leaves
    if isinstance(fabric, DualTor):
        return 2 * fabric.pairs
    if isinstance(fabric, Rail):
        hosts = sum(group.count for group in topology.hosts)
        rails = max(len(group.nic_names) for group in topology.hosts)
        return -(-hosts // fabric.hosts_per_leaf) * rails
    return len(fabric.devices) if isinstance(fabric, Explicit) else 1


def check_flows(topology: Topology) -> Iterator[Problem]:
    """Whether a scenario has too many flows, in a file that makes sense otherwise."""
    for number, scenario in enumerate(topology.scenarios):
        for job, gpus in topology.rows(scenario):
            problem = _too_many(topology, scenario, job, gpus)
            if problem is not None:
                yield problem.under("scenarios", number)
                break


def _too_many(topology: Topology, scenario: Scenario, job: str | None,
              gpus: int) -> Problem | None:
    hosts = _hosts_in_use(topology, job, gpus)
    layout = scenario.layout
    exchanges = -(-_exchanges(topology, job, scenario.expert_chunks) // layout.pipeline)
    stage = gpus // layout.pipeline
    spread = min(layout.expert or stage, stage)  # of a tensor group each GPU sends a share
    peers = -(-hosts * spread // gpus) if scenario.alltoall == "hierarchical" else spread
    # Groups of experts that meet on the first host are simulated, others do the same.
    exchanged = max(spread, min(stage, -(-gpus // hosts))) * (peers - 1) if exchanges else 0
    sockets = connection(topology, scenario).sockets
    channels = channel_count(topology, scenario)
    pairs = peer_channels(spread, channels)
    flows = max(channels * _averaging(scenario, hosts, gpus, sockets),
                pairs * exchanged * (sockets if hosts > 1 else 1))
    key = "channels" if channels * sockets > 1 else "gpus"
    if flows > MOST_FLOWS:
        return Problem(f"{flows:,} flows at once in a collective of {gpus:,} GPUs", path=(key,),
                       allowed=f"at most {MOST_FLOWS:,}, with fewer GPUs, channels or sockets, or "
                       "in a hierarchical all-to-all")
    if exchanges and scenario.alltoall in {"once-per-host", "chosen"} and spread > MOST_LISTED:
        return Problem(f"experts on {spread:,} GPUs", path=("alltoall",), found=scenario.alltoall,
                       allowed=f"at most {MOST_LISTED:,} GPUs for it, or direct or hierarchical")
    whole = exchanges * exchanged * pairs * scenario.steps
    if whole > MOST_EXCHANGED:
        return Problem(f"{whole:,} flows in {exchanges * scenario.steps} all-to-alls of experts",
                       path=("alltoall",), allowed=f"at most {MOST_EXCHANGED:,}, with fewer GPUs, "
                       "channels or steps, or hierarchical")
    return None


def _averaging(scenario: Scenario, hosts: int, gpus: int, sockets: int) -> int:
    """Flows of a channel when gradients are averaged: between hosts each edge has its sockets.

    A ring leaves each host once, a tree has two edges a GPU, NCCL may choose either, and in what
    else is in use each GPU sends one message.
    """
    if hosts == 1:
        return gpus
    edges = {"ring": hosts, "tree": 2 * gpus, "nccl": 2 * gpus}.get(scenario.allreduce, gpus)
    return max(edges * sockets, gpus)


def _hosts_in_use(topology: Topology, job: str | None, gpus: int) -> int:
    for each in topology.jobs:
        if each.name == job:
            return len(each.hosts)
    return sum(total < gpus for total in topology.gpu_totals) + 1


def _exchanges(topology: Topology, job: str | None, chunks: int) -> int:
    """All-to-alls of one step: before and after each layer of experts, there and back, by chunk.

    Of tables there are three: nothing comes back for the gradients of their rows.
    """
    own = next((each.workload for each in topology.jobs if each.name == job), None)
    workload = own or topology.workload
    layers = workload.network.layers if workload.has_network else ()
    return sum(3 if layer.lookups else 4 * chunks for layer in layers if layer.alltoall_elements)
