"""Run a collective plan on a fabric, as fluid phases inside simpy.

A phase of s steps over edges lasts: s times the latency of its slowest edge, s times the stack's
cost of a message, and the fluid time of its bytes. Edges of one coupled group (a ring) move at the
pace of the slowest edge: if every rank begins step k + 1 when its own send and receive of step k
are done, the time of s steps is s times the slowest edge's (the largest cycle mean of that
max-plus system, since each edge waits for itself; Baccelli et al., Synchronization and Linearity,
1992). So a ring is one flow whose footprint is the sum of its edges'.

Channels split a collective's bytes evenly and run side by side, each on its own source ports; what
is planned is planned for all of them. Where a rank sends several independent messages in one step
(all-to-all), it pays the stack's cost for one after the other on each channel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    import simpy
    from numpy.typing import NDArray

    from harp.collectives.ir import LocalCost, Phase
    from harp.collectives.plan import Plan
    from sim.fabric.flow import FlowFabric, FlowSet
    from sim.timeline import Timeline
    from sim.transport import Paths, Transport

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


class Moving(NamedTuple):
    """Flows of a phase that are under way, and what is needed to route them anew."""

    flows: FlowSet
    edges: Edges


class Edges(NamedTuple):
    """A phase's edges on all channels: ends, channel, flow, and share of the flow's bytes."""

    src: Ints
    dst: Ints
    channel: Ints
    group: Ints
    share: Floats


@dataclass(frozen=True, eq=False)
class Prepared:
    """A phase's flows: registered routes, and the costs beside the bytes."""

    routes: Ints
    ceilings: Floats
    alpha_s: float
    """Latency of one step: that of its slowest edge."""
    message_s: float
    """The stack's cost of the messages that a rank sends in one step."""
    hop_s: float
    """Seconds per byte of a chunk on an edge that is alone, mean over the edges."""


class Communicator:
    """The GPUs of one job as ranks, and the state that their collectives share.

    Args:
        transport: paths of messages.
        fabric: where flows run.
    """

    def __init__(self, transport: Transport, fabric: FlowFabric) -> None:
        self.transport = transport
        self.fabric = fabric
        self._capacity = transport.cluster.capacities(transport.stack)
        self._prepared: dict[tuple[bytes, ...], Prepared] = {}
        self._moving: dict[int, Moving] = {}

    @property
    def env(self) -> simpy.Environment:
        """The simulation's clock."""
        return self.fabric.env

    def run(self, plan: Plan, placement: Sequence[Ints], local_s: Callable[[LocalCost], float],
            line: Timeline, label: str = "") -> Generator[simpy.Event, None, None]:
        """Run a plan as a simpy process.

        Args:
            plan: what to run.
            placement: for each channel the GPU of each rank.
            local_s: gives the time of a GPU's own work.
            line: where it stands in the timeline.
            label: what the timeline calls it.
        """
        for phase in plan.phases():
            name = f"{label} {phase.label}".strip()
            if phase.local is not None:
                yield from line.wait(local_s(phase.local), "selection", name)
            else:
                yield from self._run_phase(phase, placement, line, name)

    def _run_phase(self, phase: Phase, placement: Sequence[Ints], line: Timeline,
                   name: str) -> Generator[simpy.Event, None, None]:
        group, amount, share = _flows_of(phase)
        edges = _on_channels(phase, placement, group, share)
        prepared = self._prepare(edges)
        moved = np.tile(amount / len(placement), len(placement))
        steps, fill_s = phase.steps, 0.0
        if phase.pipeline is not None:
            pipe = phase.pipeline
            steps = pipe.hops + pipe.chunks - 1
            fill_s = pipe.hops * pipe.fan * pipe.chunk_bytes * prepared.hop_s
            moved = moved * (pipe.chunks - 1) / pipe.chunks
        yield from line.wait(steps * prepared.alpha_s, "latency", name)
        yield from line.wait(steps * prepared.message_s, "message", name)
        start_s = self.env.now
        if fill_s:
            yield self.env.timeout(fill_s)
        # Links may have changed meanwhile, so the routes are those of this moment.
        flows = self._move(self._prepare(edges), moved, edges)
        yield flows.done
        line.transfer(name, start_s, flows.limits)

    def _move(self, prepared: Prepared, amount: Floats, edges: Edges) -> FlowSet:
        flows = self.fabric.move(prepared.routes, amount, ceilings=prepared.ceilings)
        self._moving[flows.number] = Moving(flows, edges)
        flows.done.callbacks.append(lambda _: self._forget(flows.number))
        return flows

    def _forget(self, number: int) -> None:
        del self._moving[number]

    def _prepare(self, edges: Edges) -> Prepared:
        """Routes of these edges, made once for each set of edges and shares and state of links."""
        key = (self.transport.state, *(column.tobytes() for column in edges))
        if key not in self._prepared:
            self._prepared[key] = self._build(edges)
        return self._prepared[key]

    def _build(self, edges: Edges) -> Prepared:
        paths = self.transport.paths(edges.src, edges.dst, edges.channel)
        ptr, resource, coefficient = paths.footprints(edges.group, edges.share)
        first = self.fabric.net.add_routes(ptr, resource, coefficient)
        solo = paths.solo_rate(self._capacity)
        return Prepared(np.arange(first, first + len(ptr) - 1),
                        _ceilings(paths, edges.group, edges.share),
                        float(paths.alpha_s.max(initial=0.0)), _message_s(paths, edges),
                        float(np.mean(1.0 / solo)) if len(solo) else 0.0)

    def reroute(self) -> None:
        """Route everything anew, since the state of the links has changed."""
        for moving in list(self._moving.values()):
            fresh = self._prepare(moving.edges)
            running = self.fabric.running(moving.flows)
            self.fabric.reroute(moving.flows.flows[running], fresh.routes[running])


def _flows_of(phase: Phase) -> tuple[Ints, Floats, Floats]:
    """Flow of each edge, bytes of each flow, and each edge's share of its flow's bytes.

    A coupled group is one flow; the edge that carries most sets its size. Else an edge is a flow.
    """
    nbytes = phase.bytes_per_edge.astype(np.float64)
    if not phase.coupled:
        return np.arange(len(nbytes)), nbytes, np.ones(len(nbytes))
    group = np.unique(phase.group, return_inverse=True)[1].reshape(-1)
    amount = _largest(nbytes, group)
    whole = amount[group]
    return group, amount, np.divide(nbytes, whole, out=np.zeros_like(nbytes), where=whole > 0)


def _on_channels(phase: Phase, placement: Sequence[Ints], group: Ints, share: Floats) -> Edges:
    """Repeat a phase's edges on every channel, each with flows of its own."""
    channels, edges = len(placement), len(group)
    flows = int(group.max(initial=-1)) + 1
    channel = np.repeat(np.arange(channels), edges)
    return Edges(np.concatenate([gpus[phase.src] for gpus in placement]),
                 np.concatenate([gpus[phase.dst] for gpus in placement]), channel,
                 np.tile(group, channels) + channel * flows, np.tile(share, channels))


def _message_s(paths: Paths, edges: Edges) -> float:
    """The stack's cost of one step's messages at the rank and channel that pays most.

    A coupled group's ranks send one message a step, so there the dearest edge counts.
    """
    coupled = len(edges.group) > int(edges.group.max(initial=-1)) + 1
    if coupled or not len(edges.src):
        return float(paths.message_s.max(initial=0.0))
    channels = int(edges.channel.max()) + 1
    return float(np.bincount(edges.src * channels + edges.channel, paths.message_s).max())


def _largest(values: Floats, group: Ints) -> Floats:
    largest = np.zeros(int(group.max(initial=-1)) + 1)
    np.maximum.at(largest, group, values)
    return largest


def _ceilings(paths: Paths, group: Ints, share: Floats) -> Floats:
    ceilings = np.full(int(group.max(initial=-1)) + 1, np.inf)
    with np.errstate(divide="ignore"):
        np.minimum.at(ceilings, group, paths.ceiling / share)
    return ceilings


def drain(env: simpy.Environment, processes: Iterable[Generator[simpy.Event, None, None]]) -> None:
    """Run processes side by side to their end."""
    env.run(env.all_of([env.process(process) for process in processes]))
