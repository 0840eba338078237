"""Errors for the keys of a file that the packet network does not model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.network.transport import DYNAMIC
from sim.schema.input_errors import Problem
from sim.schema.nccl_defaults import MOST_SOCKETS
from sim.schema.parameters import StackSet, derives_from

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sim.network.interface import Site

RDMA = "rdma"


def refuse_unknown(site: Site) -> None:
    """Raise TopologyError for the first key of ``site`` that only fidelity flow models."""
    for problem in _unknown(site):
        raise site.cluster.topology.error(problem)


def _unknown(site: Site) -> Iterator[Problem]:
    topology, stack = site.cluster.topology, site.stack.name
    number = next((at for at, scenario in enumerate(topology.scenarios)
                   if (scenario.stack, scenario.routing) == (stack, site.style.routing)), 0)
    if derives_from(stack, RDMA, topology.stacks, "stacks", StackSet):
        yield Problem(f"fidelity packet has no model of {stack!r}", found=stack,
                      path=("scenarios", number, "stack"),
                      allowed="harp, kernel-tcp, or a set based on one of them, at this fidelity")
    sockets, ports = site.style.sockets, _ports_of_socket(site)
    if site.style.congestion is not None and sockets * ports > MOST_SOCKETS:
        yield Problem(f"{sockets} sockets over {ports} ports each are more than the {MOST_SOCKETS} "
                      "of a connection of kernel TCP at fidelity packet", found=sockets,
                      path=("scenarios", number, "sockets"),
                      allowed=f"up to {MOST_SOCKETS // ports}")


def _ports_of_socket(site: Site) -> int:
    """Ports over which a socket is split; here each port has a socket of its own."""
    nics = [nic for group in site.cluster.topology.hosts for nic in group.nics]
    splits = [nic.ports for nic in nics
              if site.style.routing == "spray" or (site.style.bond or nic.bond) == DYNAMIC]
    return max(splits, default=1)
