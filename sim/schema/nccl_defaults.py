"""NCCL's defaults: channels between hosts, and helper threads and sockets of a connection.

Channels (``channels: auto``): NCCL searches each host for rings that enter and leave it by a NIC,
each at the largest speed of its list that the NIC has (src/graph/search.cc of 2.30), and finds one
for each NIC. It then opens every ring twice (ncclTopoPostset in src/graph/connect.cc). On Hopper
and later with NVLink it opens at least 16 (the same). So one NIC of 10 to 100 Gb/s gives two
channels, as logs of those hosts say, and one of Google's A3 gave 16. The number in a log of
another cluster can be given. In an all-to-all a pair of ranks uses few of them or one
(`peer_channels`).

Connections: NCCL's socket transport (src/transport/net_socket.cc, 2.30) opens for each connection,
i.e. channel, peer and direction, ``helpers`` threads with some sockets each (NCCL_SOCKET_NTHREADS
and NCCL_NSOCKS_PERTHREAD). By default it asks for the PCI vendor of the NIC: 2 threads with 8
sockets each on AWS's ENA, 4 with one each on Google's gVNIC, and on any other no helper at all, so
that the proxy thread of the process itself sends and receives on one socket.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from sim.schema.hosts import HostGroup
from sim.schema.parameters import StackSet, derives_from
from sim.schema.scenario_keys import Scenario
from sim.schema.topology_model import Topology

DOUBLED = 2
"""Channels of each ring that the search finds."""
HOPPER_CHANNELS = 16
"""The least on Hopper and later."""
MOST = 32
"""NCCL's own limit (MAXCHANNELS)."""
MOST_EDGES = 1 << 17
"""Edges of a ring on all channels up to which they are all simulated. Beyond it, channels that use
the same NICs are one; they differ by no more than the hash of their ports."""
_HOPPER = re.compile(r"\b(?:G?H\d{2,3}|G?B\d{2,3})\b", re.IGNORECASE)
"""Names of GPUs of compute capability 9 and above: H100, H800, H20, GH200, B200, GB200."""


def channel_count(topology: Topology, scenario: Scenario) -> int:
    """Channels of a scenario: as many as it gives, or as NCCL opens."""
    if scenario.channels != "auto":
        return scenario.channels
    found = min(_opened(topology, group) for group in topology.hosts)
    gpus = sum(group.count * group.gpus.count for group in topology.hosts)
    if found * gpus <= MOST_EDGES:
        return found
    needed = rings_of(topology)
    if scenario.allreduce == "2d":  # every GPU of a host sends by itself
        needed = -(-needed // min(group.gpus.count for group in topology.hosts))
    return max(1, min(needed, MOST_EDGES // gpus))


def rings_of(topology: Topology) -> int:
    """Rings that NCCL's search finds between the hosts: one a NIC."""
    return min(_nics(topology, group) for group in topology.hosts)


MOST_PEERS = 4
"""Peers for each channel of a communicator, above which NCCL gives a pair fewer channels."""


def peer_channels(ranks: int, channels: int) -> int:
    """Channels that a pair of ranks uses in an all-to-all, of the ``channels`` of a communicator.

    NCCL halves them as long as a channel would carry more than four peers
    (scheduleP2pTasksToPlan in src/enqueue.cc, NVIDIA/nccl 2.19 to 2.28).

    >>> [peer_channels(ranks, 16) for ranks in (4, 8, 16, 1024)]
    [16, 8, 4, 1]
    """
    used = channels
    while used > 1 and used * ranks > MOST_PEERS * channels:
        used //= 2
    return used


def is_hopper(group: HostGroup) -> bool:
    """Whether a group's GPUs are of Hopper or a later architecture, by their name."""
    return _HOPPER.search(group.gpus.model) is not None


def _nics(topology: Topology, group: HostGroup) -> int:
    """NICs that NCCL finds in a host; each elastic interface of a VPC is one."""
    vnics = topology.vpc.vnics if topology.vpc else 1
    return max(len(group.nic_names), vnics)


def _opened(topology: Topology, group: HostGroup) -> int:
    doubled = min(DOUBLED * _nics(topology, group), MOST)
    fast = is_hopper(group) and group.nvlink is not None
    return max(doubled, HOPPER_CHANNELS) if fast else doubled


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
