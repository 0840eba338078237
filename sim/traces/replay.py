"""Execution traces replayed on a simulated cluster: what each rank does when, and waits for.

Each rank is one GPU, in the order of the topology file. Its compute runs one operation at a time,
as does its CPU's; any number of transfers is in flight beside them, as on NCCL's streams (ASTRA-sim
lets one be). An operation begins when all that it waits for is done. A collective begins when all
ranks of its group have come to it, and ends for all of them at once; the n-th of a group in the
file of one rank meets the n-th of the others. A send goes at once; a receive ends when its bytes
are there. Bytes of a collective are those that a rank puts in, as in ASTRA-sim's collectives
(astra-sim/system, collective_algorithm/Ring.cc), so an all-gather's result is as many times larger
as there are ranks. A reduce takes as long as a broadcast, whose tree it is in reverse. Into an
all-to-all ranks may put different numbers of bytes, as experts do; a trace has their sum only, so
each rank sends as much to one peer as to another.

The algorithm of a collective is the scenario's ``allreduce``, or NCCL's choice.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import simpy

from harp.collectives.alltoallv import dispatch
from harp.collectives.blocks import Blocks
from harp.collectives.protocol import SIMPLE
from harp.collectives.registry import make_plan
from sim.cluster.placement import choose_gpus, common_group, place
from sim.network.fidelity import make_network
from sim.network.interface import CutOffError, Site, TooLargeError
from sim.network.nccl import View, choose, chosen_plan
from sim.network.transport import Style
from sim.records.results import Breakdown, Span
from sim.records.timeline_track import Timeline
from sim.schema.input_errors import Problem, TopologyError, show
from sim.schema.nccl_defaults import channel_count
from sim.schema.parameters import load_stack
from sim.step.exposure import split_by_name

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from harp.collectives.collective_plan import Plan
    from harp.collectives.protocol import Protocol
    from sim.cluster.cluster import Cluster
    from sim.network.interface import Capture
    from sim.records.results import LinkUse
    from sim.schema.parameters import HostStack
    from sim.schema.scenario_keys import Scenario
    from sim.schema.topology_model import Topology
    from sim.traces.job_trace import JobTrace, Op

    Process = Generator[simpy.Event, Any, None]

NETWORK = ("transfer", "latency", "message")
"""Kinds of the network's spans, and parts of the time in which a GPU waits for it."""
PARTS = ("compute", *NETWORK, "work", *(f"others' {kind}" for kind in NETWORK))
"""Parts of a rank's time, first the one to which it belongs when several things happen at once."""
UNIT = 4
"""Bytes of an element; traces count bytes only."""
MOST_UNEVEN = 512
"""Ranks of an all-to-all of unequal counts, whose blocks take ranks cubed bytes."""
NAMES = {"all-reduce": "allreduce", "all-gather": "allgather", "reduce-scatter": "reduce-scatter",
         "reduce-scatter-block": "reduce-scatter", "all-to-all": "alltoall",
         "broadcast": "broadcast", "reduce": "broadcast", "barrier": "allreduce"}
"""Our name of each collective."""


@dataclass(frozen=True)
class RankTime:
    """Times of one rank, in seconds."""

    total_s: float
    """End of its last operation."""
    compute_s: float
    """Its GPU's compute."""

    @property
    def exposed_s(self) -> float:
        """Time in which the GPU did not compute; ASTRA-sim's exposed communication."""
        return self.total_s - self.compute_s


@dataclass(frozen=True)
class Replay:
    """The answer: a time for each rank, and a timeline."""

    ranks: tuple[RankTime, ...]
    spans: tuple[Span, ...]
    breakdown: Breakdown
    """Parts of the time of the rank that is done last."""
    links: LinkUse | None
    notes: tuple[str, ...]
    effort: int
    """Work of the network, in events."""

    @property
    def total_s(self) -> float:
        """End of the last rank."""
        return max((rank.total_s for rank in self.ranks), default=0.0)


@dataclass(frozen=True)
class Means:
    """Settings of a replay."""

    fidelity: str = "flow"
    """``flow`` or ``packet``."""
    by_flops: bool = False
    """Whether compute takes its FLOPs over the GPU's rate instead of the recorded time, where the
    trace has both."""
    stack: HostStack | None = None
    """The scenario's where not given."""
    seed: int | None = None
    """Chooses the source ports of flows; the file's where not given."""
    records_use: bool = False
    """Whether utilisation is kept over time."""
    capture: Capture | None = None
    """Link to capture into a file, at fidelity packet."""


def replay(cluster: Cluster, scenario: Scenario, trace: JobTrace, means: Means = Means(),
           env: simpy.Environment | None = None) -> Replay:
    """Run a job's traces on the first GPUs of a cluster, one a rank; raises TopologyError.

    Args:
        cluster: it has as many GPUs as there are ranks, or more.
        scenario: gives the stack, the algorithm and the routing.
        trace: what the ranks do.
        means: how.
        env: the clock; one of its own where not given.
    """
    return _Run(cluster, scenario, trace, means, env or simpy.Environment()).go()


@dataclass
class _Meeting:
    """A collective for which ranks wait."""

    op: Op
    done: simpy.Event
    nbytes: dict[int, int] = field(default_factory=dict)
    """Bytes that each rank puts in, of those that have come."""


class _Run:
    def __init__(self, cluster: Cluster, scenario: Scenario, trace: JobTrace, means: Means,
                 env: simpy.Environment) -> None:
        topology = cluster.topology
        _check_scenario(topology, scenario)
        self.cluster, self.scenario, self.trace = cluster, scenario, trace
        self.env = env
        self.network = make_network(means.fidelity, self.env, Site(
            cluster, means.stack or load_stack(scenario.stack, topology.stacks),
            Style.of(scenario, topology), means.seed, records_use=means.records_use,
            capture=means.capture))
        self.comm = self.network.communicator() if len(trace.ranks) > 1 else None
        self.by_flops = means.by_flops
        self.channels = channel_count(topology, scenario)
        self.gpus = choose_gpus(cluster, range(cluster.hosts), len(trace.ranks), affinity=False)
        self.spans: list[Span] = []
        self._of: list[tuple[int, ...]] = []
        self.compute_s = [0.0] * len(trace.ranks)
        self.ends_s = [0.0] * len(trace.ranks)
        self.left = sum(map(len, trace.ranks))
        self._turns: dict[tuple[int, str], int] = {}
        self._meetings: dict[tuple[str, int], _Meeting] = {}
        self._sent: dict[tuple[int, int, int], deque[simpy.Event]] = {}
        self._awaited: dict[tuple[int, int, int], deque[simpy.Event]] = {}
        self._plans: dict[tuple[str, str, int], tuple[Plan, Protocol]] = {}
        self._places: dict[tuple[tuple[int, ...], str], Sequence[Any]] = {}

    def go(self) -> Replay:
        processes = [self.env.process(process) for rank in range(len(self.trace.ranks))
                     for process in self._rank(rank)]
        try:
            self.env.run(self.env.all_of(processes))
        except (CutOffError, TooLargeError) as error:
            raise self.cluster.topology.error(Problem(str(error))) from error
        except RuntimeError as error:  # simpy's, when nothing is left that could happen
            if not self.left:
                raise
            raise self._stuck() from error
        finally:
            self.network.close()
        end_s = max(self.ends_s, default=0.0)
        return Replay(tuple(map(RankTime, self.ends_s, self.compute_s)), tuple(self.spans),
                      self._breakdown(), self.network.usage((0.0, end_s)) if end_s else None,
                      tuple(self.network.notes), self.network.effort)

    def _record(self, span: Span, members: tuple[int, ...]) -> None:
        self.spans.append(span)
        self._of.append(members)

    def _breakdown(self) -> Breakdown:
        """Parts of the time of the rank that is done last, the first of several.

        Where neither its GPU nor the network for it is at work, it waits for the work of its CPU or
        of another rank, which counts as compute like a pipeline's bubble, or else for messages of
        others.
        """
        rank = max(range(len(self.ends_s)), key=self.ends_s.__getitem__)
        named = ((self._part(span, own=rank in members, gpu=self._track(rank)), span)
                 for span, members in zip(self.spans, self._of, strict=True))
        found = split_by_name(named, PARTS, 0.0, self.ends_s[rank])
        transfer_s, latency_s, message_s = (found[kind] + found[f"others' {kind}"]
                                            for kind in NETWORK)
        return Breakdown(found["compute"] + found["work"], transfer_s, 0.0, latency_s, message_s)

    @staticmethod
    def _part(span: Span, *, own: bool, gpu: str) -> str:
        if span.kind in NETWORK:
            return span.kind if own else f"others' {span.kind}"
        return "compute" if span.track == gpu else "work"

    def _stuck(self) -> TopologyError:
        waiting = next((one for one in self._meetings.values()
                        if len(one.nbytes) < len(self.trace.members(one.op.group))), None)
        what = ("a receive whose send never comes" if waiting is None else
                f"{show(waiting.op.name)}, to which {len(waiting.nbytes)} of "
                f"{len(self.trace.members(waiting.op.group))} ranks have come")
        return TopologyError("the traces", Problem(f"the job never ends: it waits for {what}",
                                                   allowed="traces of one run, of all its ranks"))

    def _rank(self, rank: int) -> list[Process]:
        """One process for each operation of a rank."""
        ops = self.trace.ranks[rank]
        done = [self.env.event() for _ in ops]
        gpu = simpy.Resource(self.env)
        cpu = simpy.Resource(self.env)
        places: list[int] = []
        for op in ops:  # the n-th collective of a group, whenever it begins
            key = (rank, self.trace.group(op.group))
            places.append(self._turns.get(key, 0))
            if op.kind == "collective":
                self._turns[key] = places[-1] + 1
        return [self._op(rank, op, done, done[number], {"compute": gpu, "cpu": cpu}, place)
                for number, (op, place) in enumerate(zip(ops, places, strict=True))]

    def _op(self, rank: int, op: Op, all_done: Sequence[simpy.Event], done: simpy.Event,
            units: dict[str, simpy.Resource], place: int) -> Process:
        for before in op.after:
            if not all_done[before].processed:
                yield all_done[before]
        if op.kind in units:
            with units[op.kind].request() as turn:
                yield turn
                yield from self._compute(rank, op)
        elif op.kind == "collective":
            yield from self._meet(rank, op, place)
        elif op.kind == "send":
            yield from self._send(rank, op)
        elif op.kind == "receive":
            yield self._arrival(self._sent, self._awaited, (op.peer, rank, op.tag))
        self.ends_s[rank] = self.env.now
        self.left -= 1
        done.succeed()

    def _track(self, rank: int) -> str:
        return self.cluster.gpu_name(int(self.gpus[rank]))

    def _compute(self, rank: int, op: Op) -> Process:
        seconds = op.seconds
        if op.kind == "compute" and op.flops and (self.by_flops or not seconds):
            seconds = op.flops / float(self.cluster.flops[self.gpus[rank]])
        start_s = self.env.now
        if seconds > 0:
            yield self.env.timeout(seconds)
        if op.kind == "compute" and seconds > 0:
            self.compute_s[rank] += seconds
            self._record(Span(self._track(rank), op.name, "forward", start_s, self.env.now),
                         (rank,))
        elif seconds > 0:
            self._record(Span(f"{self._track(rank)}/cpu", op.name, "update", start_s,
                              self.env.now), (rank,))

    def _meet(self, rank: int, op: Op, place: int) -> Process:
        members = self.trace.members(op.group)
        key = (self.trace.group(op.group), place)
        meeting = self._meetings.setdefault(key, _Meeting(op, self.env.event()))
        first = meeting.op
        same = op.collective == "all-to-all" or first.nbytes == op.nbytes
        if first.collective != op.collective or not same:
            raise TopologyError("the traces", Problem(
                f"number {place + 1} of the group {show(key[0])} is {op.collective} of "
                f"{op.nbytes} B for rank {rank} and {first.collective} of {first.nbytes} B for "
                "another", allowed="the same collective for all ranks of a group"))
        meeting.nbytes[rank] = op.nbytes
        if len(meeting.nbytes) < len(members):
            yield meeting.done
            return
        if len(members) > 1:
            counts = tuple(meeting.nbytes[member] for member in members)
            plan, protocol = (self._plan(op, members) if len(set(counts)) == 1
                              else (self._uneven(members, counts), SIMPLE))
            yield from self._carry(plan, members, f"{self._track(members[0])}/stream{op.group}",
                                   op.name, protocol)
        meeting.done.succeed()

    def _send(self, rank: int, op: Op) -> Process:
        plan = make_plan("broadcast", ranks=2, nbytes=-(-max(op.nbytes, 1) // UNIT) * UNIT,
                         unit_bytes=UNIT, chunk_bytes=max(op.nbytes, UNIT))
        yield from self._carry(plan, (rank, op.peer), f"{self._track(rank)}/send", op.name)
        self._arrival(self._awaited, self._sent, (rank, op.peer, op.tag)).succeed()

    def _arrival(self, others: dict[tuple[int, int, int], deque[simpy.Event]],
                 own: dict[tuple[int, int, int], deque[simpy.Event]],
                 key: tuple[int, int, int]) -> simpy.Event:
        """The event that a send and its receive share; the first of them makes it."""
        waiting = others.get(key)
        if waiting:
            return waiting.popleft()
        event = self.env.event()
        own.setdefault(key, deque()).append(event)
        return event

    def _carry(self, plan: Plan, members: tuple[int, ...], track: str, label: str,
               protocol: Protocol = SIMPLE) -> Process:
        assert self.comm is not None
        line = Timeline(self.env, lambda span: self._record(span, members), track)
        yield from self.comm.run(plan, self._place(members, plan.name), _nothing, line, label,
                                 protocol)

    def _place(self, members: tuple[int, ...], plan: str) -> Sequence[Any]:
        key = (members, plan)
        if key not in self._places:
            gpus = self.gpus[list(members)]
            if plan == "broadcast":  # two ranks in any order, or a tree
                self._places[key] = [gpus] * (1 if len(gpus) == 2 else self.channels)
            else:
                self._places[key] = place(self.cluster, gpus, self.channels,
                                          affinity=self.scenario.affinity).of(plan)
        return self._places[key]

    def _plan(self, op: Op, members: tuple[int, ...]) -> tuple[Plan, Protocol]:
        name, ranks = NAMES[op.collective], len(members)
        nbytes = max(op.nbytes, UNIT) * (ranks if name == "allgather" else 1)
        each = UNIT * ranks if name in ("reduce-scatter", "allgather", "alltoall") else UNIT
        nbytes = -(-nbytes // each) * each
        key = (name, ",".join(map(str, members)), nbytes)
        if key not in self._plans:
            self._plans[key] = self._made(name, members, nbytes)
        return self._plans[key]

    def _uneven(self, members: tuple[int, ...], nbytes: Sequence[int]) -> Plan:
        """An all-to-all into which each rank puts another number of bytes, the same to each peer.

        Each pair of ranks is one message, as NCCL's grouped sends are.
        """
        ranks = len(members)
        if ranks > MOST_UNEVEN:
            raise TopologyError("the traces", Problem(
                f"an all-to-all of unequal counts has {ranks:,} ranks",
                allowed=f"at most {MOST_UNEVEN}, or equal counts"))
        each = np.array([-(-one // (UNIT * ranks)) for one in nbytes])
        return dispatch(Blocks.of_counts(np.tile(each[:, None], ranks), UNIT), "direct", None, UNIT)

    def _made(self, name: str, members: tuple[int, ...], nbytes: int) -> tuple[Plan, Protocol]:
        gpus: np.ndarray[Any, np.dtype[np.int64]] = self.gpus[list(members)]
        group = common_group(self.cluster, gpus)
        by_nccl = self.scenario.allreduce == "nccl"
        if by_nccl and name in ("allreduce", "allgather", "reduce-scatter"):
            choice = choose(View.of(self.cluster, self.scenario, gpus), name, nbytes)
            return chosen_plan(choice, len(members), nbytes, unit_bytes=UNIT,
                               group=group), choice.protocol
        algorithm = "ring" if self.scenario.allreduce in ("nccl", "light") else (
            self.scenario.allreduce)
        return make_plan(algorithm if name == "allreduce" else name, ranks=len(members),
                         nbytes=nbytes, unit_bytes=UNIT, group=group,
                         chunk_bytes=max(nbytes, 1)), SIMPLE


def _check_scenario(topology: Topology, scenario: Scenario) -> None:
    """Raise TopologyError for keys that a replay does not do."""
    number = [one.name for one in topology.scenarios].index(scenario.name)
    for key, wrong, allowed in (("routing", scenario.routing == "plan", "ecmp, spray"),
                                ("faults", bool(scenario.faults), "none"),
                                ("background", bool(scenario.background), "none"),
                                ("sync", scenario.sync is not None, "none")):
        if wrong:
            raise topology.error(Problem("has no meaning for a replay of traces",
                                         path=("scenarios", number, key), allowed=allowed))


def _nothing(_cost: object) -> float:
    """A collective's own work on the GPU; traces record it as compute, if at all."""
    return 0.0
