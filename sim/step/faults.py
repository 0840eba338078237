"""Faults as simpy processes: links that fail, degrade or flap, and GPUs that slow down.

A link that goes down stops its flows at once. After the fault's detection and recovery times the
flows are routed over the remaining links; when the link is back they return at once. If a flap is
shorter than these times, routing never reacts, and its flows wait for the link.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sim.network.interface import CutOffError
from sim.schema.input_errors import Problem, listing
from sim.schema.scenario_keys import link_ends

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    import simpy
    from numpy.typing import NDArray

    from harp.routing.fabric import Fabric
    from sim.cluster.cluster import Cluster
    from sim.network.interface import Network
    from sim.schema.scenario_keys import Fault, LinkDegrade, LinkDown, LinkFlap, SlowGpu
    from sim.step.compute import Slowness

    Ints = NDArray[np.int64]
    Process = Generator[simpy.Event, None, None]


NOTED_FLAPS = 2
"""Flaps of a fault with a note each."""
MOST_IDLE_FLAPS = 20_000
"""Flaps in a row in which traffic waits and none moves: faults that keep one another going."""


def find_links(fabric: Fabric, text: str) -> Ints:
    """Directed links of ``a-b`` (both ways) or ``a->b`` (one way); raises Problem.

    An end is a switch, a NIC (``host-0/eth0``, all its ports) or one port (``host-0/eth0.1``).
    """
    port_link = {f"{endpoint}.{port}": link
                 for endpoint, links in zip(fabric.endpoints, fabric.endpoint_ports.tolist(),
                                            strict=True)
                 for port, link in enumerate(links) if link >= 0}
    near, far, one_way = link_ends(text, {**fabric.nodes, **port_link})
    links = np.arange(len(fabric.link_src))
    for name, ends, way in ((near, fabric.link_src, 0), (far, fabric.link_dst, 1)):
        links = (links[ends[links] == fabric.nodes[name]] if name in fabric.nodes
                 else links[links == port_link[name] ^ way])
    if not len(links):
        beside = fabric.link_dst[fabric.link_src == fabric.nodes[near.rpartition(".")[0]
                                 if near in port_link else near]]
        names = sorted({fabric.node_name(int(node)) for node in beside})
        raise Problem(f"no cable joins {near} and {far}", found=far, names=names,
                      allowed=f"{near} joined with {listing(names)}")
    return links if one_way else np.concatenate([links, links ^ 1])


def check_links(cluster: Cluster) -> None:
    """Raise TopologyError where a fault of the file names no link."""
    topology = cluster.topology
    for number, fault in enumerate(topology.faults):
        if fault.kind != "slow-gpu":
            try:
                find_links(cluster.fabric, fault.link)
            except Problem as problem:
                raise topology.error(problem.under("faults", number, "link")) from problem


@dataclass(frozen=True, eq=False)
class Struck:
    """The targets of faults: one scenario's network and its jobs."""

    env: simpy.Environment
    network: Network
    cluster: Cluster
    slowness: Sequence[Slowness]
    gpus: Mapping[str, tuple[int, float]]
    """For each GPU in use, by its name in the file: the job, and its speed over the job's pace."""
    notes: list[str]
    speeds: dict[str, tuple[Ints, float]] = field(default_factory=dict)
    """Links at a share of their rate, by fault; a link goes at the lowest of its faults."""
    avoided: dict[str, Ints] = field(default_factory=dict)
    """Links that routing avoids, by fault."""
    quiet: set[str] = field(default_factory=set)
    """Faults that get no more notes."""

    def note(self, fault: str, text: str) -> None:
        """Add a note on an event, with its time."""
        if fault not in self.quiet:
            self.notes.append(f"{self.env.now * 1e3:.1f} ms: {fault}: {text}")

    def scale(self, fault: str, links: Ints, factor: float | None) -> None:
        """Let links run at a share of their rate, or (None) as if this fault were not."""
        if factor is None:
            self.speeds.pop(fault)
        else:
            self.speeds[fault] = links, factor
        lowest = np.ones(len(self.cluster.fabric.link_src))
        for others, share in self.speeds.values():
            lowest[others] = np.minimum(lowest[others], share)
        self.network.scale(lowest)

    def avoid(self, fault: str, links: Ints | None) -> None:
        """Route around links, or (None) use them again."""
        if links is None:
            self.avoided.pop(fault)
        else:
            self.avoided[fault] = links
        self.network.avoid(np.concatenate([np.empty(0, np.int64), *self.avoided.values()]))


def strike(fault: Fault, struck: Struck) -> Process:
    """The process of one fault."""
    yield struck.env.timeout(fault.at)
    if fault.kind == "slow-gpu":
        yield from _slow(fault, struck)
        return
    links = find_links(struck.cluster.fabric, fault.link)
    if fault.kind == "link-degrade":
        yield from _degrade(fault, links, struck)
    elif fault.kind == "link-down":
        yield from _down(fault, links, fault.duration, struck)
    else:
        yield from _flap(fault, links, struck)


def _slow(fault: SlowGpu, struck: Struck) -> Process:
    host, _, number = fault.gpu.partition("/")
    gpu = f"{host}/{int(number)}"
    if gpu not in struck.gpus:
        return
    job, reserve = struck.gpus[gpu]
    struck.slowness[job].set(fault.name, min(fault.factor * reserve, 1.0))
    struck.note(fault.name, f"{fault.gpu} at {fault.factor:.0%} of its speed")
    if fault.duration is not None:
        yield struck.env.timeout(fault.duration)
        struck.slowness[job].set(fault.name, None)
        struck.note(fault.name, f"{fault.gpu} at full speed again")


def _degrade(fault: LinkDegrade, links: Ints, struck: Struck) -> Process:
    struck.scale(fault.name, links, fault.factor)
    struck.note(fault.name, f"{fault.link} at {fault.factor:.0%} of its rate")
    if fault.duration is not None:
        yield struck.env.timeout(fault.duration)
        struck.scale(fault.name, links, None)
        struck.note(fault.name, f"{fault.link} at its full rate again")


def _down(fault: LinkDown | LinkFlap, links: Ints, seconds: float | None,
          struck: Struck) -> Process:
    reaction_s = fault.detection + fault.recovery
    struck.scale(fault.name, links, 0.0)
    if seconds is None:
        struck.network.abandon(links)
    struck.note(fault.name, f"{fault.link} is down")
    if seconds is not None and seconds <= reaction_s:
        yield struck.env.timeout(seconds)
        struck.scale(fault.name, links, None)
        struck.note(fault.name, f"{fault.link} is up again before anyone noticed")
        return
    yield struck.env.timeout(reaction_s)
    struck.avoid(fault.name, links)
    waits = struck.network.waits_for
    struck.note(fault.name, f"{waits}; traffic waits for it" if waits else
                f"traffic goes around {fault.link}")
    if seconds is not None:
        yield struck.env.timeout(seconds - reaction_s)
        struck.scale(fault.name, links, None)
        struck.avoid(fault.name, None)
        struck.note(fault.name, f"{fault.link} is up and used again")


def _flap(fault: LinkFlap, links: Ints, struck: Struck) -> Process:
    end_s = struck.env.now + (fault.duration or math.inf)
    carried, idle, flaps = 0.0, 0, 0
    while struck.env.now < end_s:
        flaps += 1
        if flaps > NOTED_FLAPS:
            struck.note(fault.name, f"and so on, every {fault.period * 1e3:g} ms")
            struck.quiet.add(fault.name)
        down_s = min(fault.period / 2, end_s - struck.env.now)
        yield from _down(fault, links, down_s, struck)
        yield struck.env.timeout(fault.period / 2)
        before, carried = carried, struck.network.carried
        idle = idle + 1 if struck.network.busy and carried == before else 0
        if idle > MOST_IDLE_FLAPS:
            raise CutOffError(f"{fault.link} was up {idle} times, and nothing got through")
