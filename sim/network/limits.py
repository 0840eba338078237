"""Names of the resources that hold transfers back, and the search for the one that did.

Fidelity `flow` knows which resources are saturated at every moment (`flow_network.name_limits`).
Where bytes move packet by packet no resource is full all the time: there it is the resource that
was used most, if it was used most of the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from sim.cluster.cluster import Cluster

    Floats = NDArray[np.float64]

RESOURCES = {"nvlink": "NVLink", "pcie": "PCIe", "vnic": "vNIC cap", "host": "host cap",
             "packets": "packet rate", "thread": "network thread", "cores": "stack cores",
             "numa_link": "NUMA link"}
"""The user's word for a block of resources; others go by their own names."""
USED_LEAST = 0.8
"""Share of a transfer's time for which the resource that is named was used at least."""


def kinds_of_resources(cluster: Cluster) -> tuple[list[str], NDArray[np.int8]]:
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


class LimitWatch:
    """Names the limit of a transfer between two moments.

    Args:
        cluster: names the resources.
        used_s: gives how many seconds each of them has been used so far.
    """

    def __init__(self, cluster: Cluster, used_s: Callable[[], Floats]) -> None:
        self._names, self._kind_of = kinds_of_resources(cluster)
        self._used_s = used_s

    def begin(self, start_s: float) -> Callable[[float], list[tuple[float, str]]]:
        """Begin now; the result, called at the end, returns the limits for `Timeline.transfer`."""
        before_s = self._used_s()

        def end(end_s: float) -> list[tuple[float, str]]:
            if end_s <= start_s:
                return []
            share = (self._used_s() - before_s) / (end_s - start_s)
            most = int(share.argmax())
            held = share[most] >= USED_LEAST
            return [(start_s, self._names[self._kind_of[most]] if held else "")]

        return end
