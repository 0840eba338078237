"""The check of simulators in which a GPU and its NIC are one node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.schema.input_errors import Problem

if TYPE_CHECKING:
    from sim.schema.topology_model import Topology


def check_nics(topology: Topology, simulator: str) -> None:
    """Raise TopologyError unless each GPU has a NIC of one port."""
    for number, group in enumerate(topology.hosts):
        nics = len(group.nic_names)
        if nics != group.gpus.count or max(group.nic_ports) > 1:
            raise topology.error(Problem(
                f"{nics} NICs for {group.gpus.count} GPUs", path=("hosts", number, "nics"),
                allowed=f"in {simulator} a NIC of one port for each GPU"))
