"""Name what holds a flow back: the kinds of the resources that are saturated on its route."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.network.flow.fluid import CEILING

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from sim.cluster.cluster import Cluster

FLOW = "one flow"
"""The ceiling of a flow: the stack's or the VPC's on one five-tuple."""
STALLED = "fault"
"""No resource holds a flow back that crosses a link without capacity."""
RESOURCES = {"nvlink": "NVLink", "pcie": "PCIe", "vnic": "vNIC cap", "host": "host cap",
             "packets": "packet rate", "thread": "network thread", "cores": "stack cores",
             "numa_link": "NUMA link"}
"""What the user calls a block of resources; others go by their own names."""


def name_limits(cluster: Cluster) -> Callable[[NDArray[np.int32]], str]:
    """A function that names what holds a flow back, given the saturated resources of its route.

    Where several are saturated at once each is named, since none of them alone is worth raising.
    """
    names, kind_of = _kinds(cluster)

    def name(saturated: NDArray[np.int32]) -> str:
        if not len(saturated):
            return STALLED
        own = [FLOW] if saturated[0] == CEILING else []
        kinds = np.unique(kind_of[saturated[len(own):]])
        return " + ".join(own + [names[kind] for kind in kinds.tolist()])

    return name


def _kinds(cluster: Cluster) -> tuple[list[str], NDArray[np.int8]]:
    """Name of each kind, and the kind of each resource."""
    names, parts = ["NIC", "fabric"], []
    for block in cluster.blocks.values():
        if block.kind == "link":
            fabric = cluster.fabric
            inside = np.maximum(fabric.link_src, fabric.link_dst) < len(fabric.switches)
            parts.append(inside.astype(np.int8))
            continue
        plain = block.kind.removesuffix("_out").removesuffix("_in")
        name = RESOURCES.get(plain, plain.replace("_", " "))
        if name not in names:
            names.append(name)
        parts.append(np.full(len(block.capacity), names.index(name), np.int8))
    return names, np.concatenate(parts)
