"""A topology as the text that ns-3's simulators of RDMA read, HPCC's and ASTRA-sim's.

The first line counts nodes, switches and links, the second numbers the switches, and each further
one is a link: both ends, rate, latency and loss (alibaba-edu/High-Precision-Congestion-Control,
simulation/mix/topology.txt). Nodes with lower numbers are the NICs, in the order of the topology
file, one a GPU; what is inside hosts is not in the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.cluster.cluster import build_fabric
from sim.formats.one_nic_a_gpu import check_nics

if TYPE_CHECKING:
    from sim.schema.topology_model import Topology


def ns3_topology(topology: Topology) -> str:
    """Text of the file; raises TopologyError where GPUs and NICs are not as many."""
    check_nics(topology, "ns-3")
    fabric = build_fabric(topology)
    switches, nics = len(fabric.switches), len(fabric.endpoints)

    def node(number: int) -> int:
        return number + nics if number < switches else number - switches

    lines = [f"{nics + switches} {switches} {len(fabric.link_src) // 2}",
             " ".join(str(nics + number) for number in range(switches))]
    lines += [f"{node(int(fabric.link_src[link]))} {node(int(fabric.link_dst[link]))} "
              f"{fabric.link_bps[link] / 1e9:g}Gbps {fabric.link_latency_s[link] * 1e3:g}ms 0"
              for link in range(0, len(fabric.link_src), 2)]
    return "\n".join(lines) + "\n"
