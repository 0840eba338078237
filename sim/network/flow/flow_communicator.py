"""Run a collective plan as fluid phases inside simpy.

A pipeline (rings, trees) is one flow for each ring or tree. Its footprint is the sum of those of
its edges, since in the end all of them keep the pace of the slowest. The latency and the filling of
the pipeline and the stack's time for its messages precede that flow, in closed form
(`sim.network.flow.pipeline`). NCCL's own figures limit rings and trees through whole hosts if NICs
move the bytes (`sim.network.nccl_limits`). A phase in lock step lasts
the latency of its slowest edge, the stack's cost of a rank's messages, and the fluid time of its
edges' bytes, each a flow of its own.

Channels split a collective's bytes evenly and run side by side, each on its own source ports; what
is planned is planned for all of them. A short collective uses fewer (`harp.collectives.window`).
The thread of a process handles messages one after the other, for all channels and both directions;
if helpers or the NIC move the bytes meanwhile, only its time beyond theirs counts.

Over long round trips kernel TCP's windows add time to what the fluid gives (`sim.network.flow.
windows`). Plans that run alone are taken as some of many, whose windows are open.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from harp.collectives.protocol import SIMPLE
from sim.network.corrections import find_corrections
from sim.network.flow.pipeline import EdgeTimes, phase_times
from sim.network.flow.windows import FAR_S, Windows
from sim.network.message_paths import joined, quicker_s
from sim.network.transport import edges_on_channels

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    import simpy
    from numpy.typing import NDArray

    from harp.collectives.collective_plan import Plan
    from harp.collectives.ir import LocalCost, Phase
    from harp.collectives.protocol import Protocol
    from sim.network.corrections import Correction
    from sim.network.flow.timed_fluid import FlowSet, TimedFluid
    from sim.network.message_paths import Paths, Stages
    from sim.network.nccl_limits import Limits
    from sim.network.transport import Transport
    from sim.records.timeline_track import Timeline

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

TASK_BYTES = 64 << 10
"""Least part of a message for one socket (NCCL_SOCKET_MIN_TASKSIZE, src/transport/net_socket.cc of
NVIDIA/nccl 2.30)."""
PART = 1 << 15
"""Edges that are routed at once: what is kept of them meanwhile fits a processor's cache."""
DIGESTED = 1 << 20
"""Bytes of an array above which its digest stands for it."""
_NONE = np.empty(0)
KEPT_RANKS = 64
"""Largest number of ranks of plans with cached phases, which the next simulation needs again."""
REPEATED_RANKS, REPEATED_PLANS = 2048, 16
"""The same of the last few plans that are no all-to-all: a step has them for many buckets. Edges of
a plan on its channels take some MB for 1,024 ranks."""


class Moving(NamedTuple):
    """Running flows of a phase, and the data for routing them again."""

    flows: FlowSet
    laid: Laid


class Edges(NamedTuple):
    """A phase's edges on all channels: ends, channel, flow, share of the flow's bytes, and hop."""

    src: Ints
    dst: Ints
    channel: Ints
    group: Ints
    share: Floats
    level: Ints


class Laid(NamedTuple):
    """A phase on its channels."""

    edges: Edges
    amount: Floats
    """Bytes of each flow."""
    largest: float
    """The most of them."""
    key: tuple[bytes, ...]
    """Identifies the set of edges."""
    channels: int
    apart: bool
    """Whether each edge is a flow of its own, and no edge waits for another (lock step)."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A phase's flows: registered routes, and the costs beside the bytes."""

    routes: NDArray[np.int32]
    ceilings: Floats
    inner: NDArray[np.bool_]
    """Edges that stay inside a host, where protocols differ in latency."""
    times: EdgeTimes
    helped: bool
    """Whether bytes move while the next message is handled."""
    stages: Stages | None
    """Stages that bytes pass one after the other between hosts."""
    socket_most: float
    """Bytes/s of one of the sockets over which NCCL splits a message."""
    limits: Limits | None
    """Limits of NCCL on a collective over these edges."""
    far: bool
    """Whether kernel TCP has to cross so long round trips that its windows count."""


class Timed(NamedTuple):
    """A phase on its channels, ready to run: its flows, and its time beside them."""

    laid: Laid
    state: bytes
    """Of the links, when it was timed."""
    prepared: Prepared
    latency_s: float
    filling_s: float
    message_s: float
    ceilings: Floats


class Scaled(NamedTuple):
    """Times of a phase's flows for each byte of the largest one."""

    seconds: float
    limits: tuple[tuple[float, str], ...]


class FlowCommunicator:
    """The GPUs of one job as ranks, and the state that their collectives share.

    Args:
        transport: paths of messages.
        fluid: moves the flows.
        alone: whether nothing else will ever use the network, and one plan runs at a time. Rates
            of a phase in lock step then depend on no size, so its time grows as its bytes do, and
            is found once for all sizes.
    """

    def __init__(self, transport: Transport, fluid: TimedFluid, *, alone: bool = False) -> None:
        self.transport = transport
        self.fluid = fluid
        self._alone = alone
        self._per_byte: dict[tuple[object, ...], Scaled] = {}
        self._prepared: dict[tuple[bytes, tuple[bytes, ...]], Prepared] = {}
        self._timed: WeakKeyDictionary[Phase, dict[tuple[object, ...], Timed]] = (
            WeakKeyDictionary())
        self._moving: dict[int, Moving] = {}
        self._windows: dict[tuple[bytes, ...], Windows] = {}
        self.corrections: set[Correction] = set()
        """Known errors of the fluid's times in the plans that have run."""
        self.handled = 0
        """Edges routed and timed, and flows started, so far."""

    @property
    def env(self) -> simpy.Environment:
        """The simulation's clock."""
        return self.fluid.env

    def run(self, plan: Plan, placement: Sequence[Ints], local_s: Callable[[LocalCost], float],
            line: Timeline, label: str = "",
            protocol: Protocol = SIMPLE) -> Generator[simpy.Event, None, None]:
        """Run a plan, as the protocol says: phase after phase, each as its flows."""
        used = placement[:protocol.channels(plan.name, plan.ranks,
                                            round(plan.nbytes / protocol.wire), len(placement))]
        where = tuple(gpus.tobytes() for gpus in used)
        for phase, flows in _layout(plan):
            name = f"{label} {phase.label}".strip()
            if phase.local is not None:
                yield from line.wait(local_s(phase.local), "selection", name)
            else:
                timed = self._time(phase, _lay(phase, flows, used, where), protocol, plan)
                yield from self._run_phase(timed, line, name)

    def announce(self, plan: Plan, placement: Sequence[Ints]) -> None:
        """See `sim.network.interface.Communicator`."""
        self.transport.announce_plan(plan, placement)

    def _run_phase(self, timed: Timed, line: Timeline,
                   name: str) -> Generator[simpy.Event, None, None]:
        yield from line.wait(timed.latency_s, "latency", name)
        yield from line.wait(timed.message_s, "message", name)
        start_s = self.env.now
        if timed.filling_s:
            yield self.env.timeout(timed.filling_s)
        largest = timed.laid.largest
        key: tuple[object, ...] = ()
        if self._alone and timed.laid.apart and largest > 0:
            key = (timed.state, timed.laid.key, _identity(timed.laid.amount / largest),
                   _identity(timed.ceilings))
        if key in self._per_byte:
            known = self._per_byte[key]
            yield self.env.timeout(known.seconds * largest)
            line.transfer(name, start_s, [(start_s + after_s * largest, limit)
                                          for after_s, limit in known.limits])
            return
        flows = self._move(timed, watched=line.names_limits)
        yield flows.done
        if key:
            self._per_byte[key] = Scaled(
                (self.env.now - start_s) / largest,
                tuple(((at_s - start_s) / largest, limit) for at_s, limit in flows.limits))
        line.transfer(name, start_s, flows.limits)
        yield from line.wait(self._lost_to_windows_s(timed, start_s), "latency", name)

    def _lost_to_windows_s(self, timed: Timed, start_s: float) -> float:
        """Give what windows of kernel TCP add to a phase's flows, which end now."""
        edges, prepared = timed.laid.edges, timed.prepared
        if self._alone or not prepared.far:
            return 0.0
        key = timed.laid.key[:3]  # ends and channels: the connections
        if key not in self._windows:
            round_trip_s = np.where(prepared.inner, 0.0, 2 * prepared.times.alpha_s)
            style = self.transport.style
            self._windows[key] = Windows(round_trip_s, style.sockets, self.transport.payload,
                                         begins_anew=style.congestion != "bbr")
        nbytes = timed.laid.amount[edges.group] * edges.share
        return self._windows[key].lost_s(nbytes, start_s, self.env.now)

    def _time(self, phase: Phase, laid: Laid, protocol: Protocol, plan: Plan) -> Timed:
        """Time of a phase beside its flows: found once for each step that has it again."""
        known = self._timed.setdefault(phase, {})
        key = (self.transport.links.key, protocol, laid.key)
        if key not in known:
            known[key] = self._find_times(phase, laid, protocol, plan)
        return known[key]

    def _find_times(self, phase: Phase, laid: Laid, protocol: Protocol, plan: Plan) -> Timed:
        prepared = self._prepare(laid)
        self.handled += len(laid.edges.src)
        self.corrections.update(find_corrections(phase, ~prepared.inner[:len(phase.src)],
                                                 self.transport.style.routing))
        times, state = prepared.times, self.transport.links.key
        piece, cut = laid.amount, None
        if phase.feeds is not None:
            cut = protocol.window.cut(phase, laid.channels)
            piece = laid.amount / cut.pieces
        if prepared.stages is not None:
            nbytes = piece[laid.edges.group] * laid.edges.share
            times = times._replace(alpha_s=times.alpha_s + prepared.stages.forwarding_s(nbytes))
        if protocol.inner != 1.0:
            alpha_s = np.where(prepared.inner, protocol.inner * times.alpha_s,
                               quicker_s(times.alpha_s, protocol))
            times = times._replace(alpha_s=alpha_s)
        if phase.feeds is None or cut is None:
            return Timed(laid, state, prepared, float(times.alpha_s.max(initial=0.0)), 0.0,
                         float(np.maximum(times.first_message_s, times.message_s).max(initial=0.0)),
                         prepared.ceilings)
        whole = phase_times(times, laid.edges.group, piece, phase.feeds, cut,
                            protocol.window.slots, helped=prepared.helped)
        ceilings = prepared.ceilings
        if prepared.socket_most < np.inf:
            ceilings = np.where(np.isfinite(ceilings), np.minimum(
                ceilings, _of_sockets(prepared.socket_most, piece / cut.messages)), np.inf)
        if np.count_nonzero(whole.least_s):
            held = (whole.least_s > 0) & (piece > 0)
            window = np.divide(piece, whole.least_s, out=np.full(len(piece), np.inf), where=held)
            ceilings = np.minimum(ceilings, window)
        latency_s, limits = whole.latency_s, prepared.limits
        if limits is not None and plan.nbytes:
            share = np.maximum(laid.amount, 1.0) / plan.nbytes
            ceilings = np.minimum(ceilings, share * limits.bytes_per_s(plan, protocol))
            latency_s = max(latency_s, limits.latency_s(
                plan, protocol, steps=phase.steps, alpha_s=times.alpha_s, inner=prepared.inner))
        return Timed(laid, state, prepared, latency_s, whole.filling_s, whole.message_s, ceilings)

    def _move(self, timed: Timed, *, watched: bool) -> FlowSet:
        # Links may have changed since, so the routes are those of this moment.
        now = (timed.prepared if timed.state == self.transport.links.key
               else self._prepare(timed.laid))
        self.handled += len(now.routes)
        flows = self.fluid.move(now.routes, timed.laid.amount, ceilings=timed.ceilings,
                                watched=watched)
        self._moving[flows.number] = Moving(flows, timed.laid)
        flows.done.callbacks.append(lambda _: self._forget(flows.number))
        return flows

    def _forget(self, number: int) -> None:
        del self._moving[number]

    def _prepare(self, laid: Laid) -> Prepared:
        """Routes of these edges, made once for each set of edges and shares and state of links."""
        key = (self.transport.links.key, laid.key)
        if key not in self._prepared:
            self.handled += len(laid.edges.src)
            by_parts = (laid.apart and len(laid.edges.src) > PART
                        and self.transport.style.routing != "plan")
            if self._alone and by_parts:  # sizes grow: those that reached fewer ranks are over
                self._prepared = {known: made for known, made in self._prepared.items()
                                  if not PART < len(made.routes) < len(laid.amount)}
            self._prepared[key] = (self._build_by_parts if by_parts else self._build)(laid.edges)
        return self._prepared[key]

    def _build(self, edges: Edges) -> Prepared:
        paths = self.transport.paths(edges.src, edges.dst, edges.channel)
        ptr, resource, coefficient = paths.footprints(edges.group, edges.share)
        first = self.fluid.net.add_routes(ptr, resource, coefficient)
        capacity = self.transport.capacity
        steady_s = paths.shared_s(capacity, edges.share)
        first_s = (paths.shared_s(capacity, edges.share, edges.level) if edges.level.any()
                   else steady_s)
        return Prepared(np.arange(first, first + len(ptr) - 1, dtype=np.int32),
                        _ceilings(paths, edges.group, edges.share), paths.inner,
                        EdgeTimes(paths.alpha_s, _first_turns_s(paths, edges),
                                  _turns_s(paths, edges), first_s, steady_s), paths.helped,
                        paths.stages, paths.socket_most, paths.limits, self._is_far(paths))

    def _is_far(self, paths: Paths) -> bool:
        longest_s = float(np.where(paths.inner, 0.0, paths.alpha_s).max(initial=0.0))
        return self.transport.style.congestion is not None and 2 * longest_s >= FAR_S

    def _build_by_parts(self, edges: Edges) -> Prepared:
        """Do the same for edges that are flows of their own, some after the other.

        The demand of a pipeline on all edges together is left out. A million edges at once would
        take gigabytes, most of the time for waiting for memory.
        """
        found = []
        for start in range(0, len(edges.src), PART):
            some = slice(start, start + PART)
            paths = self.transport.paths(edges.src[some], edges.dst[some], edges.channel[some])
            own, share = np.arange(paths.edges), edges.share[some]
            first = self.fluid.net.add_routes(*paths.footprints(own, share))
            found.append((paths.without_rows(), first, _ceilings(paths, own, share)))
        paths = joined([part for part, _, _ in found])
        return Prepared(np.concatenate([np.arange(first, first + part.edges, dtype=np.int32)
                                        for part, first, _ in found]),
                        np.concatenate([ceilings for _, _, ceilings in found]), paths.inner,
                        EdgeTimes(paths.alpha_s, _first_turns_s(paths, edges),
                                  _turns_s(paths, edges), _NONE, _NONE), paths.helped,
                        paths.stages, paths.socket_most, paths.limits, self._is_far(paths))

    def reroute(self) -> None:
        """Route everything anew, since the state of the links has changed."""
        for moving in list(self._moving.values()):
            fresh = self._prepare(moving.laid)
            running = self.fluid.running(moving.flows)
            self.fluid.reroute(moving.flows.flows[running], fresh.routes[running])


def _layout(plan: Plan) -> Iterable[tuple[Phase, tuple[Ints, Floats, Floats]]]:
    """Phases of a plan and the flows of each; of plans on few ranks they are made once."""
    if plan.ranks <= KEPT_RANKS:
        return _kept_layout(plan)
    if plan.ranks <= REPEATED_RANKS and "alltoall" not in plan.name:
        return _repeated_layout(plan)
    return _made_layout(plan)


def _made_layout(plan: Plan) -> Iterator[tuple[Phase, tuple[Ints, Floats, Floats]]]:
    for phase in plan.phases():
        yield phase, _flows_of(phase)


@lru_cache(maxsize=256)
def _kept_layout(plan: Plan) -> tuple[tuple[Phase, tuple[Ints, Floats, Floats]], ...]:
    return tuple(_made_layout(plan))


@lru_cache(maxsize=REPEATED_PLANS)
def _repeated_layout(plan: Plan) -> tuple[tuple[Phase, tuple[Ints, Floats, Floats]], ...]:
    return tuple(_made_layout(plan))


def _flows_of(phase: Phase) -> tuple[Ints, Floats, Floats]:
    """Flow of each edge, bytes of each flow, and each edge's share of its flow's bytes.

    A ring or tree is one flow; the edge that carries most sets its size. Else an edge is a flow.
    """
    nbytes = phase.bytes_per_edge.astype(np.float64)
    edges = np.arange(len(nbytes))
    if np.array_equal(phase.group, edges):
        return edges, nbytes, (nbytes > 0).astype(np.float64)
    group = np.unique(phase.group, return_inverse=True)[1].reshape(-1)
    amount = _largest(nbytes, group)
    whole = amount[group]
    return group, amount, np.divide(nbytes, whole, out=np.zeros_like(nbytes), where=whole > 0)


_laid: WeakKeyDictionary[Phase, dict[tuple[bytes, ...], Laid]] = WeakKeyDictionary()
"""Phases on their channels: the next simulation has the same ones, whatever its figures are."""


def _lay(phase: Phase, layout: tuple[Ints, Floats, Floats], placement: Sequence[Ints],
         where: tuple[bytes, ...]) -> Laid:
    """Repeat a phase's edges on every channel, each with flows of its own.

    ``where`` identifies the placement.
    """
    known = _laid.setdefault(phase, {})
    if where not in known:
        group, amount, share = layout
        edges = _on_channels(phase, placement, group, share)
        each = amount / len(placement)
        known[where] = Laid(edges, np.tile(each, len(placement)), float(each.max(initial=0.0)),
                            tuple(_identity(column) for column in edges), len(placement),
                            phase.feeds is None and len(amount) == len(group))
    return known[where]


def _identity(column: NDArray[Any]) -> bytes:
    """The bytes of an array, or of a large one a digest, which is as good."""
    return column.tobytes() if column.nbytes <= DIGESTED else blake2b(column.data).digest()


def _on_channels(phase: Phase, placement: Sequence[Ints], group: Ints, share: Floats) -> Edges:
    channels = len(placement)
    flows = int(group.max(initial=-1)) + 1
    src, dst, channel = edges_on_channels(phase, placement)
    level = np.zeros(len(group), np.int64) if phase.feeds is None else phase.feeds.level
    return Edges(src, dst, channel, np.tile(group, channels) + channel * flows,
                 np.tile(share, channels), np.tile(level, channels))


def _of_sockets(socket_most: float, message: Floats) -> Floats:
    """Bytes/s of the sockets that messages of ``message`` bytes occupy.

    NCCL cuts a message into tasks of at least `TASK_BYTES` and gives each to a socket.
    """
    return np.asarray(np.maximum(np.ceil(message / TASK_BYTES), 1.0) * socket_most)


def _turns_s(paths: Paths, edges: Edges) -> Floats:
    """Time that the busier thread at an edge's ends spends on a message of each of its edges."""
    if not paths.proxied or not len(edges.src):
        return paths.message_s
    ends = max(int(edges.src.max()), int(edges.dst.max())) + 1
    spent_s = (np.bincount(edges.src, paths.message_s, ends)
               + np.bincount(edges.dst, paths.message_s, ends))
    return np.where(paths.message_s > 0, np.maximum(spent_s[edges.src], spent_s[edges.dst]), 0.0)


def _first_turns_s(paths: Paths, edges: Edges) -> Floats:
    """Wait of an edge's first message for the threads at its ends, one after the other.

    Its sender's, which has all that it sends on edges of this hop, and its receiver's, which has
    all that comes on such edges.
    """
    if not paths.proxied or not len(edges.src):
        return paths.message_s
    ends = max(int(edges.src.max()), int(edges.dst.max())) + 1
    src, dst = edges.level * ends + edges.src, edges.level * ends + edges.dst
    turns_s = np.bincount(src, paths.message_s)[src] + np.bincount(dst, paths.message_s)[dst]
    return np.where(paths.message_s > 0, turns_s, 0.0)


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
