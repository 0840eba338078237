"""Faults as simpy processes: links that fail, degrade or flap, and GPUs that slow down.

A link that goes down stops its flows at once. After the fault's detection and recovery times the
flows are routed over what is left; when the link is back they return at once. A flap shorter than
these times is never routed around, so its flows wait for the link.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

import numpy as np

from harp.routing.fabric import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    import simpy
    from numpy.typing import NDArray

    from harp.routing.fabric import Fabric
    from sim.collective import Communicator
    from sim.fabric.flow import FlowFabric
    from sim.schema.faults import Fault, LinkDegrade, LinkDown, LinkFlap
    from sim.train import Slowness
    from sim.transport import Transport

    Process = Generator[simpy.Event, None, None]


def find_links(fabric: Fabric, text: str) -> NDArray[np.int64]:
    """Directed links of ``a-b`` (both ways) or ``a->b`` (one way); ValueError if there is none."""
    nodes = fabric.nodes
    if "->" in text:
        near, far = (end.strip() for end in text.split("->", 1))
        ends = [(near, far)] if near in nodes and far in nodes else []
    else:
        ends = [(text[:i], text[i + 1 :]) for i, c in enumerate(text) if c == "-"]
        ends = [(a, b) for a, b in ends if a in nodes and b in nodes]
    both = "->" not in text
    for a, b in ends:
        links = fabric.links_between(a, b)
        if len(links):
            return np.concatenate([links, links ^ 1]) if both else links
    cables = fabric.link_name
    names = [cables(link).replace("->", "-") for link in range(0, len(fabric.link_src), 2)]
    near_name = get_close_matches(text.replace("->", "-"), names, n=1, cutoff=0.0)
    raise ValueError(f"there is no link {text!r}; did you mean {near_name[0]!r}?"
                     if near_name else f"there is no link {text!r}")


@dataclass(frozen=True, eq=False)
class Struck:
    """What faults act on: one scenario's network and its jobs."""

    env: simpy.Environment
    fabric: FlowFabric
    transport: Transport
    comms: Sequence[Communicator]
    slowness: Sequence[Slowness]
    job_of_gpu: dict[str, int]
    notes: list[str]
    down: dict[str, NDArray[np.int64]]
    """Links that routing avoids now, by fault."""

    def note(self, text: str) -> None:
        """Tell the reader what happened, with the time."""
        self.notes.append(f"{self.env.now * 1e3:.1f} ms: {text}")

    def scale(self, links: NDArray[np.int64], factor: float) -> None:
        """Let links run at a share of their rate."""
        block = self.transport.cluster.blocks["link"]
        for link in links.tolist():
            self.fabric.change(int(block[link]), float(block.capacity[link]) * factor)

    def avoid(self, name: str, links: NDArray[np.int64] | None) -> None:
        """Route around links, or (None) use them again."""
        if links is None:
            self.down.pop(name, None)
        else:
            self.down[name] = links
        whole = self.transport.cluster.fabric
        gone = np.concatenate([np.empty(0, np.int64), *self.down.values()]).astype(np.int64)
        self.transport.fabric = whole.without(gone) if len(gone) else whole
        try:
            moved = sum(comm.reroute() for comm in self.comms)
        except UnreachableError as error:
            self.note(f"{name}: {error}; its flows wait for the link")
            self.transport.fabric = whole
            return
        self.note(f"{name}: {moved} flows {'routed around' if links is not None else 'return'}")


def strike(fault: Fault, struck: Struck) -> Process:
    """The process of one fault."""
    env = struck.env
    yield env.timeout(fault.at)
    if fault.kind == "slow-gpu":
        yield from _slow(fault.name, struck.job_of_gpu[fault.gpu], fault.factor, fault.duration,
                         struck)
        return
    links = find_links(struck.transport.cluster.fabric, fault.link)
    if fault.kind == "link-degrade":
        yield from _degrade(fault, links, struck)
    elif fault.kind == "link-down":
        yield from _down(fault, links, fault.duration, struck)
    else:
        yield from _flap(fault, links, struck)


def _slow(name: str, job: int, factor: float, seconds: float | None, struck: Struck) -> Process:
    if job < 0:
        return
    struck.slowness[job].set(name, factor)
    struck.note(f"{name}: a GPU at {factor:.0%} of its speed")
    if seconds is not None:
        yield struck.env.timeout(seconds)
        struck.slowness[job].set(name, None)
        struck.note(f"{name}: over")


def _degrade(fault: LinkDegrade, links: NDArray[np.int64], struck: Struck) -> Process:
    struck.scale(links, fault.factor)
    struck.note(f"{fault.name}: {fault.link} at {fault.factor:.0%} of its rate")
    if fault.duration is not None:
        yield struck.env.timeout(fault.duration)
        struck.scale(links, 1.0)
        struck.note(f"{fault.name}: over")


def _down(fault: LinkDown | LinkFlap, links: NDArray[np.int64], seconds: float | None,
          struck: Struck) -> Process:
    reaction_s = fault.detection + fault.recovery
    struck.scale(links, 0.0)
    struck.note(f"{fault.name}: {fault.link} is down")
    if seconds is not None and seconds <= reaction_s:
        yield struck.env.timeout(seconds)
        struck.scale(links, 1.0)
        struck.note(f"{fault.name}: {fault.link} is up again before anyone noticed")
        return
    yield struck.env.timeout(reaction_s)
    struck.avoid(fault.name, links)
    if seconds is not None:
        yield struck.env.timeout(seconds - reaction_s)
        struck.scale(links, 1.0)
        struck.avoid(fault.name, None)


def _flap(fault: LinkFlap, links: NDArray[np.int64], struck: Struck) -> Process:
    end_s = struck.env.now + fault.duration if fault.duration is not None else float("inf")
    while struck.env.now < end_s:
        yield from _down(fault, links, fault.period / 2, struck)
        yield struck.env.timeout(fault.period / 2)
