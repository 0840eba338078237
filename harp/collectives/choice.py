"""The choice of a way for an all-to-all with counts, by what its ports and ranks have to do.

The runtime asks it for each call, and the simulator for each plan, with the rates of its cluster.
A step of a plan takes

    latency + messages of the busiest rank x message + the largest of
        bytes of the busiest host's port, out or in, / port
        bytes of the busiest rank within its host, out or in, / memory

which is the fluid model of fidelity ``flow`` where ports are the bottleneck, all messages are in
flight, and steps follow one another.

>>> import numpy as np
>>> from harp.collectives.blocks import Blocks
>>> both = Blocks(np.array([0]), np.array([[False, False, True, True]]), np.array([1 << 20]))
>>> choose(dispatch, both, (0, 0, 1, 1))
'once-per-host'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harp.collectives.alltoallv import WAYS, combine, dispatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harp.collectives.alltoallv import Way
    from harp.collectives.blocks import Blocks
    from harp.collectives.collective_plan import Plan

__all__ = ["Rates", "choose", "combine", "dispatch", "plan_s"]


@dataclass(frozen=True)
class Rates:
    """Rates of hosts and their network.

    Defaults are of two hosts on 10 Gb/s: a rough guess. It matters only between algorithms of about
    equal time. The latency is TCP's within a data centre, a message costs what a rank's thread
    takes for one over kernel TCP, and memory what two copies through a ring take
    (cnet/lightcc/direct.h).
    """

    port_bytes_s: float = 1.25e9
    memory_bytes_s: float = 5e9
    latency_s: float = 50e-6
    memory_latency_s: float = 5e-6
    message_s: float = 10e-6


def plan_s(plan: Plan, hosts: Sequence[int], rates: Rates | None = None) -> float:
    """Return the time of a plan whose rank r is on host ``hosts[r]``."""
    given = rates or Rates()
    host, total = np.asarray(hosts, np.int64), 0.0
    for phase in plan.phases():
        away = host[phase.src] != host[phase.dst]
        ends = (phase.src, phase.dst)
        port, memory, messages = (max((float(np.bincount(side, weight).max(initial=0))
                                       for side, weight in rows), default=0.0) for rows in (
            [(host[end[away]], phase.bytes_per_edge[away]) for end in ends],
            [(end[~away], phase.bytes_per_edge[~away]) for end in ends],
            [(end[away], np.ones(int(away.sum()))) for end in ends]))
        total += (given.latency_s if away.any() else given.memory_latency_s)
        total += messages * given.message_s
        total += max(port / given.port_bytes_s, memory / given.memory_bytes_s)
    return total


def choose(make: Callable[..., Plan], blocks: Blocks, hosts: Sequence[int],
           rates: Rates | None = None) -> Way:
    """Return the fastest algorithm to `dispatch` or `combine` these; the simplest of equals."""
    ways = [way for way in WAYS if way == "direct" or _may_help(make, blocks, way, hosts)]
    if len(ways) == 1:
        return ways[0]
    return min(ways, key=lambda way: plan_s(make(blocks, way, hosts), hosts, rates))


def _may_help(make: Callable[..., Plan], blocks: Blocks, way: Way, hosts: Sequence[int]) -> bool:
    """Whether there is a plan of this way, and it is another one than the direct one."""
    host = np.asarray(hosts, np.int64)
    if len(np.unique(host)) in {1, len(host)}:  # no relays, or nobody to relay to
        return False
    if way == "hierarchical":
        return make is dispatch
    block, member = blocks.pairs
    same = block[1:] == block[:-1]
    return bool(same.any() and (host[member[1:]] == host[member[:-1]])[same].all())
