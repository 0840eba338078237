"""What moves the bytes of one NCCL connection: helper threads and sockets.

NCCL's socket transport (src/transport/net_socket.cc, 2.30) opens for each connection, i.e. channel,
peer and direction, ``helpers`` threads with some sockets each (NCCL_SOCKET_NTHREADS and
NCCL_NSOCKS_PERTHREAD). By default it asks for the PCI vendor of the NIC: 2 threads with 8 sockets
each on AWS's ENA, 4 with one each on Google's gVNIC, and on any other no helper at all, so that the
proxy thread of the process itself sends and receives on one socket.
"""

from collections.abc import Mapping
from typing import NamedTuple

from sim.schema.model import Topology
from sim.schema.parameters import StackSet, derives_from
from sim.schema.scenario import Scenario

KERNEL_TCP = "kernel-tcp"
"""The stack under NCCL's socket transport, and the base of all others of its kind."""
MOST_SOCKETS = 64
"""Sockets of a connection, at most (MAX_SOCKETS)."""


class Connection(NamedTuple):
    """Helper threads (0: the process's own thread) and sockets of a connection."""

    helpers: int
    sockets: int


DEFAULTS = {"ena": Connection(2, 16), "gve": Connection(4, 4), "other": Connection(0, 1)}
"""NCCL's choice by the NIC's driver."""


def connection(topology: Topology, scenario: Scenario, stack: str | None = None) -> Connection:
    """Helpers and sockets of a scenario's connections between hosts, over ``stack`` or its own."""
    if not uses_sockets(stack or scenario.stack, topology.stacks):
        return Connection(0, scenario.sockets or 1)
    drivers = {nic.driver for group in topology.hosts for nic in group.nics}
    default = DEFAULTS[drivers.pop() if len(drivers) == 1 else "other"]
    helpers, sockets = scenario.helpers, scenario.sockets
    if helpers is None and sockets is None:
        return default
    if sockets is None:
        assert helpers is not None
        each = max(default.sockets // max(default.helpers, 1), 1)
        return Connection(helpers, min(max(helpers, 1) * each, MOST_SOCKETS) if helpers else 1)
    if helpers is None:  # several sockets need a helper, and a helper needs a socket
        helpers = min(max(default.helpers, int(sockets > 1)), sockets)
    return Connection(helpers, sockets)


def uses_sockets(stack: str, stacks: Mapping[str, StackSet]) -> bool:
    """Whether NCCL's socket transport drives a stack."""
    return derives_from(stack, KERNEL_TCP, stacks, "stacks", StackSet)
