"""Factory of networks by the name of their fidelity.

`flow` shares rates as a fluid: thousands of hosts in seconds. `packet` moves every frame through
every queue, between real sessions, and `steady` does so for all collectives but those that repeat
themselves. `lab` runs real stacks over real kernels, at a scale and by the wall clock. A topology
that a fidelity cannot carry is a TopologyError at the key in question.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    import simpy

    from sim.network.interface import Network, Site
    from sim.network.wall_clock import WallClock
    from sim.schema.topology_model import Topology

NETWORKS = {"flow": "sim.network.flow.flow_network:FlowNetwork",
            "packet": "sim.network.packet.packet_network:PacketNetwork",
            "steady": "sim.network.packet.packet_network:SteadyNetwork",
            "lab": "sim.network.lab.lab_network:LabNetwork"}
"""Module and class of each fidelity's network, imported when it is needed."""


def wall_clock(fidelity: str, topology: Topology) -> WallClock | None:
    """The clock of a fidelity that runs by the wall clock; None for one that does not."""
    if fidelity != "lab":
        return None
    from sim.network.wall_clock import WallClock

    return WallClock(topology.lab.scale)


def make_network(fidelity: str, env: simpy.Environment, site: Site) -> Network:
    """Make the network of one scenario."""
    module, name = NETWORKS[fidelity].split(":")
    kind = getattr(import_module(module), name)
    return cast("Callable[[simpy.Environment, Site], Network]", kind)(env, site)
