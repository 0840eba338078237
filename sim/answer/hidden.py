"""Properties of kernel TCP connections that are often unknown: helper threads and their cores.

NCCL asks for the PCI vendor of a NIC and gives a connection 2 x 8, 4 x 1 or no helper threads and
sockets (`sim.schema.nccl_defaults`). Behind a VPC whose file gives no ``driver`` any of the three
may be true, and answers differ twofold and more; a draw takes one of them. The answer itself takes
none, as NCCL does on a card that it does not know.

Helper threads help only on cores of their own. Where a launcher binds a process to one core they
all share it with the proxy thread, and together move what one core can. Open MPI binds so by
default where it starts up to two processes, and to a NUMA node where it starts more (mpirun's
manual, "bind-to"); Horovod's manual of Open MPI turns it off ("-bind-to none"). How many jobs of
two processes run so is not known: a third is assumed (`BOUND`).
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, NamedTuple

from sim.schema.nccl_defaults import DEFAULTS, connection, uses_sockets

if TYPE_CHECKING:
    from sim.cluster.cluster import Cluster
    from sim.schema.scenario_keys import Scenario
    from sim.schema.topology_model import Topology

BOUND = 1 / 3
"""Share of jobs of at most `BOUND_PROCESSES` whose helper threads share a core with their process:
assumed."""
BOUND_PROCESSES = 2


class Hidden(NamedTuple):
    """The cluster of a draw; as the file has it where None and False."""

    driver: str | None = None
    bound: bool = False

    def __str__(self) -> str:
        """In a few words."""
        return ", ".join(([f"driver {self.driver}"] if self.driver else [])
                         + (["helpers on one core"] if self.bound else [])) or "as in the file"


AS_TOLD = Hidden()


def unknown_driver(topology: Topology) -> bool:
    """Whether NCCL's defaults count and the file leaves the driver of a VPC's NICs open."""
    given = any("driver" in nic.model_fields_set for group in topology.hosts for nic in group.nics)
    return topology.vpc is not None and not given and any(
        _on_sockets(topology, scenario) and scenario.helpers is None and scenario.sockets is None
        for scenario in topology.scenarios)


def may_be_bound(topology: Topology) -> bool:
    """Whether helper threads serve, or may serve, connections of processes bound to a core."""
    processes = sum(group.count * group.gpus.count for group in topology.hosts)
    return processes <= BOUND_PROCESSES and (unknown_driver(topology) or any(
        _on_sockets(topology, scenario) and connection(topology, scenario).helpers > 0
        for scenario in topology.scenarios))


def _on_sockets(topology: Topology, scenario: Scenario) -> bool:
    """Whether NCCL's own sockets serve a scenario, on a cluster that nothing was fitted to."""
    stacks = topology.stacks
    return scenario.stack in ("kernel-tcp", *stacks) and uses_sockets(scenario.stack, stacks)


def dimensions(topology: Topology) -> int:
    """Coordinates that a draw of these takes: for the driver, and for the cores."""
    return int(unknown_driver(topology)) + int(may_be_bound(topology))


def hidden_at(topology: Topology, shares: list[float]) -> Hidden:
    """The cluster of a draw with these coordinates, each from 0 to 1."""
    names = sorted(DEFAULTS)
    driver = (names[min(int(shares[-1] * len(names)), len(names) - 1)]
              if unknown_driver(topology) else None)
    return Hidden(driver, may_be_bound(topology) and shares[0] < BOUND)


def every_hidden(topology: Topology) -> list[Hidden]:
    """All that the cluster may be; empty where the file says it."""
    drivers = sorted(DEFAULTS) if unknown_driver(topology) else [None]
    cores = (False, True) if may_be_bound(topology) else (False,)
    found = [Hidden(driver, bound) for driver in drivers for bound in cores]
    return found if len(found) > 1 else []


def uncover(cluster: Cluster, hidden: Hidden) -> Cluster:
    """The cluster with its file as ``hidden`` says; the same one where nothing changes."""
    if hidden == AS_TOLD:
        return cluster
    topology = cluster.topology
    changes: dict[str, object] = {}
    if hidden.driver is not None:
        changes["hosts"] = tuple(group.model_copy(update={"nics": tuple(
            nic.model_copy(update={"driver": hidden.driver}) for nic in group.nics)})
            for group in topology.hosts)
    made = topology.model_copy(update=changes)
    if hidden.bound:
        made = made.model_copy(update={"scenarios": tuple(
            _bound(made, scenario) for scenario in made.scenarios)})
    found = copy(cluster)
    found.topology = made
    return found


def _bound(topology: Topology, scenario: Scenario) -> Scenario:
    """A scenario whose process's one core moves what its sockets carry."""
    if not _on_sockets(topology, scenario):
        return scenario
    usual = connection(topology, scenario)
    return scenario.model_copy(update={"helpers": 0, "sockets": usual.sockets})
