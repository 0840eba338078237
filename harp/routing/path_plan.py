"""A path plan: the source port, bond port and resulting links of each flow.

The simulator evaluates a plan and a deployment carries it out (``deployment``), so it is plain data
and can be checked: ``verify`` walks every flow through the switches' own hashing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harp.routing import hashes
from harp.routing.paths import walked_paths
from harp.routing.source_ports import bonded, policies

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harp.routing.fabric import Fabric, Flows
    from harp.routing.source_ports import Bonds

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


class PlanError(ValueError):
    """A plan is not valid on a fabric, or a file is not a plan; the message says where."""


@dataclass(frozen=True, eq=False)
class PathPlan:
    """Paths of flows between endpoints, realised by source ports; arrays of shape (flows,).

    ``src`` and ``dst`` are endpoint numbers, ``endpoints`` their names. ``demand_bps`` is the rate
    that a flow wants. ``source_port`` is its source port, ``dst_port`` the one that it goes
    to, ``bond_port`` the port of its NIC; ``protocol`` is IP's number of what the flows are.
    ``links`` has shape (flows, most links): directed links in order, -1 padded.

    ``max_load`` is the largest demand over capacity of a link; ``bound`` is the collision-free
    bound, below which no routes can bring it; ``ecmp_load`` is what the same flows yield by plain
    ECMP with their first usable ports. ``unrealised`` counts the flows for which no usable source
    port led to the path first chosen, so that they take another one.
    """

    endpoints: tuple[str, ...]
    src: Ints
    dst: Ints
    demand_bps: Floats
    source_port: Ints
    bond_port: Ints
    links: Ints
    max_load: float
    bound: float
    ecmp_load: float
    unrealised: int = 0
    dst_port: Ints | int = hashes.ROCE_PORT
    protocol: int = hashes.UDP

    def flows(self, fabric: Fabric) -> Flows:
        """Return the flows as the fabric routes them, with their planned five-tuples."""
        return fabric.flows(self.src, self.dst, self.source_port, self.dst_port, self.protocol)

    def verify(self, fabric: Fabric, bonds: Bonds | None = None) -> None:
        """Walk all flows through the switches' hashing; PlanError names the first that strays.

        Flows of endpoints with a policy in ``bonds`` leave as that policy hashes them.
        """
        if not self.src.size:
            return
        leaves = bonded(fabric, self.flows(fabric), policies(self.src, bonds))
        walked = walked_paths(fabric, self.flows(fabric),
                              np.where(leaves < 0, self.bond_port, leaves))
        width = max(walked.shape[1], self.links.shape[1])
        walked, promised = (np.pad(p, ((0, 0), (0, width - p.shape[1])), constant_values=-1)
                            for p in (walked, self.links))
        astray = np.flatnonzero((walked != promised).any(axis=1))
        if astray.size:
            flow = int(astray[0])
            hop = int(np.argmax(walked[flow] != promised[flow]))
            names = [fabric.cable_names[int(p)] if p >= 0 else "nothing"
                     for p in (walked[flow, hop], promised[flow, hop])]
            raise PlanError(
                f"flow {flow} from {self.endpoints[self.src[flow]]} to "
                f"{self.endpoints[self.dst[flow]]} takes {names[0]} where the plan has {names[1]}; "
                f"{astray.size} of {self.src.size} flows stray")


def link_loads(fabric: Fabric, links: Ints, demand_bps: Floats) -> Floats:
    """Demand over capacity of each directed link; ``links`` has shape (flows, links), -1 padded."""
    flow, _ = np.nonzero(links >= 0)
    total = np.bincount(links[links >= 0], demand_bps[flow], len(fabric.link_bps))
    loads: Floats = total / fabric.link_bps
    return loads
