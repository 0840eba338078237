"""A training job as simpy processes: steps of compute and the collectives beside it.

A step is a graph of operations (`sim.step.step_graph`). GPU operations run in the graph's order. A
collective begins when its predecessors are done: a serial coordination, then the plan on one of the
``streams``. The step ends when compute and all collectives are done. GPUs of a job run in lock
step, at the pace of the slowest.

Experts of a Mixture of Experts are spread over all GPUs of the job. An expert layer waits for an
all-to-all before it (dispatch) and one after it (combine), and so does its backward pass, in which
they run the other way. Their time is exposed, whatever else the network does meanwhile. With
``expert_chunks`` a part of the tokens is sent while experts compute on another.

Work that a collective puts on the GPU (top-k selection and scatter-add, casts) takes its time there
and delays the backward pass by the same time, since the two share one GPU; where the host does it
instead, by a share (``kernel_delay``). A collective's own
kernels slow the backward pass down by a factor while they run. Compute times of ranks differ from
step to step, and a step waits for the slowest: all compute is stretched by the mean of the largest
of n normal deviations (Blom's approximation), and, where several GPUs of a host train, by what they
take from one another there (``contention``: input pipeline, cores, power).

`Coordinator` and `Streams` serve a job's collectives in the order of their requests. simpy's
resources do so too, but with an event for each request and release; these need one only if a
request waits, and a step has dozens of collectives.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harp.collectives.ir import Op
from harp.lightcc.policy import FP32_BYTES
from sim.records.results import Breakdown, Span
from sim.records.timeline_track import Timeline
from sim.step.compute import Slowness
from sim.step.critical_path import critical_path
from sim.step.exposure import KINDS, exposed
from sim.step.groups import Groups
from sim.step.recipe import (
    Chosen,
    activation_plan,
    choose_plan,
    exchange_plan,
    send_plan,
    share_plan,
)
from sim.step.state_times import update_s
from sim.step.step_graph import ON_GPU, OVERLAPPED, step_graph

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    import simpy
    from numpy.typing import NDArray

    from harp.collectives.ir import LocalCost
    from sim.network.interface import Communicator
    from sim.records.results import Limit
    from sim.step.compute import Pass
    from sim.step.groups import Group
    from sim.step.recipe import Recipe
    from sim.step.step_graph import Operation

    Ints = NDArray[np.int64]
    Process = Generator[simpy.Event, Any, None]

MOST_SHOWN = 16
"""Groups of ranks that run a plan at once and name what holds them back."""
CAST_BYTES = 6
"""Memory traffic of an element that is cast between fp32 and fp16."""
ENCODE_BYTES, DECODE_BYTES = 13, 9
"""The same of an element in few bits, by what `cnet/lightcc/few_bits.c` reads and writes: value and
error, 12, or the sum, 8; and a byte of the message, which is right for 8 bits and at most 0.75 too
much for fewer."""


class Coordinator:
    """Serves one request after the other, as they come."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env, self._free_s = env, 0.0

    def serve(self, seconds: float) -> Generator[simpy.Event, None, float]:
        """Wait until a request is served that takes ``seconds``; return when its turn came."""
        start_s = max(self._env.now, self._free_s)
        self._free_s = start_s + seconds
        if self._free_s > self._env.now:
            yield self._env.timeout(self._free_s - self._env.now)
        return start_s


class Streams:
    """Streams by name, each taken by one collective at a time."""

    def __init__(self, env: simpy.Environment, names: Iterable[str]) -> None:
        self._env, self._idle = env, deque(names)
        self._waiting: deque[simpy.Event] = deque()

    def take(self) -> Generator[simpy.Event, str, str]:
        """Wait for an idle stream and take it."""
        if self._idle:
            return self._idle.popleft()
        turn = self._env.event()
        self._waiting.append(turn)
        return (yield turn)

    def give_back(self, stream: str) -> None:
        """Hand a stream to the collective that has waited longest."""
        if self._waiting:
            self._waiting.popleft().succeed(stream)
        else:
            self._idle.append(stream)


COLLECTIVES = {"gather": "allgather", "scatter": "reduce-scatter", "reduce": "allreduce",
               "overlapped-reduce": "allreduce", "collect": "allgather",
               "spread": "reduce-scatter"}
"""Collective of each kind of operation on shares of parameters, and on activations."""


class Mark(NamedTuple):
    """Begin of an operation within its step."""

    since_s: float
    spans: int
    waits: int


class Job:
    """One training job; `run` is its simpy process.

    Attributes:
        steps_s: start and end of each finished step.
        breakdowns: where the time of each step that counts went.
        finds_paths: whether anybody wants `paths`.
        paths: what each step that counts waited for.
        spans: the timeline of the last of them.
        counted: steps that are kept; those after them only keep other jobs company.
        lead: of them the first ones, which do not count.
        update_s: what ends a step on a GPU alone (`sim.step.state_times`).
        island: GPUs that train in step; all but where the job synchronises rarely.
    """

    def __init__(self, env: simpy.Environment, recipe: Recipe, comm: Communicator | None,
                 gpus: int, work: Pass, track: str, *, alike: bool = True,
                 bubble: float = 0.0, island: int | None = None) -> None:
        self.env, self.recipe, self.comm, self.gpus, self.work = env, recipe, comm, gpus, work
        self.island = gpus if island is None else island
        self.slow = Slowness()
        self.track = track
        self.steps_s: list[tuple[float, float]] = []
        self.breakdowns: list[Breakdown] = []
        self.finds_paths = True
        self.paths: list[tuple[Limit, ...]] = []
        self.spans: tuple[Span, ...] = ()
        self.counted: float = math.inf
        self.lead = 0
        self._current: list[Span] = []
        self._waits: list[tuple[float, float]] = []
        self._debt_s = 0.0
        self._late_s = 0.0
        self._late_waits: list[tuple[float, float]] = []
        self._running, self._running_since_s, self._ran_s = 0, 0.0, 0.0
        delay = recipe.costs.kernel_delay
        self._kernel_delay = 1.0 if delay is None else delay.value
        crowd = recipe.costs.contention if min(self.island, recipe.host_group) > 1 else None
        self._stretch = ((1.0 + recipe.costs.jitter.value * largest_deviation(self.island))
                         * (1.0 if crowd is None else 1.0 + crowd.value))
        self._coordinator = Coordinator(env)
        self._streams = Streams(env, [f"{track}/stream{n}" for n in range(recipe.streams)])
        self.groups = Groups(recipe.layout, self.island, min(recipe.host_group, self.island),
                             beside=recipe.shares_switches)
        self.update_s = update_s(recipe, self.groups)
        self.graph = step_graph(recipe, work, self.groups, alike=alike, bubble=bubble)
        self._marked = {done.since for done in self.graph if done.since >= 0}
        self._marks: dict[int, Mark] = {}
        self._once_s: dict[int, float] = {}
        self._done_s: dict[int, float] = {}
        """End of each collective of the step, and of each backlog."""
        self._waited = {number for done in self.graph for number in done.after}
        self._exchange_track = f"{track}/alltoall"
        self._overlapping = Streams(env, [f"{track}/overlapped"])
        self._sending = Streams(env, [f"{track}/sends"])
        self._placed: dict[tuple[str, Group], list[Sequence[Ints]]] = {}

    def record(self, span: Span) -> None:
        """Take a span of the network's timeline."""
        self._current.append(span)

    def run(self, steps: int) -> Process:
        """Train ``steps`` steps."""
        for _ in range(steps):
            yield from self.step()

    def step(self) -> Process:
        """One training step."""
        start_s = self.env.now
        self._current, self._debt_s, self._waits = [], 0.0, []
        self._late_waits = []
        done = {number: self.env.event() for number in self._waited}
        beside = []
        if self.comm is not None:
            beside = [self.env.process(self._beside(number, operation, done))
                      for number, operation in enumerate(self.graph)
                      if operation.kind not in ON_GPU]
        for number, operation in enumerate(self.graph):
            if number in self._marked:
                self._marks[number] = Mark(self.env.now, len(self._current), len(self._waits))
            if operation.kind in ON_GPU:
                yield from self._on_gpu(operation, done)
                if number in done:
                    done[number].succeed()
        compute_end_s = self.env.now
        yield self.env.all_of(beside)
        network_end_s = self.env.now
        overhead_s = self.recipe.costs.step_overhead.value if self.island > 1 else 0.0
        yield from self._compute(overhead_s, "update", "framework", scaled=False)
        yield from self._compute(self.update_s * self._stretch, "update", "optimizer")
        overhead_s = self.env.now - network_end_s
        self._late_s, late_since_s = 0.0, self.env.now
        yield from self._after_step()
        self._late_s += self.env.now - late_since_s
        self._finish(start_s, compute_end_s, network_end_s, overhead_s)

    def _after_step(self) -> Process:
        """Work after the optimizer's step; `sim.step.outer` has some."""
        yield from ()

    def steps_of(self, wanted: int) -> int:
        """Steps to simulate or repeat for ``wanted`` steps that count."""
        return self.lead + wanted

    @property
    def stretch(self) -> float:
        """Extra time of compute, since a step waits for the slowest rank."""
        return self._stretch

    @property
    def replicas(self) -> int:
        """Copies of the model: what the job trains a batch on."""
        return self.gpus // self.recipe.layout.split

    def repeat_step(self, times: int) -> None:
        """Count the last step ``times`` more times, unless it does not count."""
        if len(self.steps_s) <= self.lead:
            return
        self.steps_s += self.steps_s[-1:] * times
        self.breakdowns += self.breakdowns[-1:] * times
        self.paths += self.paths[-1:] * times

    # ---- compute

    def _on_gpu(self, operation: Operation, done: Mapping[int, simpy.Event]) -> Process:
        """One operation that the GPU does, or waits for."""
        for number in operation.after:
            if not done[number].processed:
                start_s = self.env.now
                yield done[number]
                self._waits.append((start_s, self.env.now))
        if operation.kind == "exchange":
            yield from self._all_to_all(operation, self._exchange_track)
        elif operation.kind in ("reduce", "collect", "spread"):
            yield from self._reduce(operation, self._exchange_track)
        elif operation.kind == "send":
            yield from self._send(operation, self._exchange_track)
        elif operation.kind == "page":
            yield from self._compute(operation.seconds, "page", operation.name, scaled=False)
        elif operation.kind == "launch":
            launched_s = self._marks[operation.since].since_s + operation.seconds
            yield from self._compute(launched_s - self.env.now, "launch", operation.name,
                                     scaled=False)
        elif operation.kind in ("again", "bubble"):
            yield from self._more(operation)
        elif operation.kind == "settle":
            yield from self._pay_debt(operation.name)
        else:
            ran_s = self._collectives_s()
            yield from self._compute(operation.seconds * self._stretch, operation.kind,
                                     operation.name)
            beside_s = self._collectives_s() - ran_s
            yield from self._compute(beside_s * (self.recipe.costs.slowdown.value - 1.0),
                                     operation.kind, f"{operation.name} slowed down")

    def _more(self, operation: Operation) -> Process:
        """Do again what was done since an operation, or wait for a share of its time."""
        now_s, mark = self.env.now, self._marks[operation.since]
        once_s = self._once_s.pop(operation.since, now_s - mark.since_s)
        if operation.kind == "again":
            times = operation.size
            self._once_s[operation.since] = once_s
            # One span of `times` the length stands for `times` spans, of each kind.
            for span in self._current[mark.spans:]:
                self._current.append(span._replace(
                    name=f"{span.name}, {times} times",
                    start_s=now_s + times * max(span.start_s - mark.since_s, 0.0),
                    end_s=now_s + times * (span.end_s - mark.since_s)))
            self._waits += [(now_s + times * (since_s - mark.since_s),
                             now_s + times * (until_s - mark.since_s))
                            for since_s, until_s in self._waits[mark.waits:]]
            yield self.env.timeout(times * once_s)
        else:
            yield self.env.timeout(operation.seconds * once_s)
            self._gpu_span("bubble", operation.name, now_s)

    def _collectives_s(self) -> float:
        """Time so far during which a collective was on its way."""
        return self._ran_s + (self.env.now - self._running_since_s if self._running else 0.0)

    def _count_running(self, change: int) -> None:
        """Note that a collective begins (1) or ends (-1)."""
        self._ran_s, self._running_since_s = self._collectives_s(), self.env.now
        self._running += change

    def _compute(self, seconds: float, kind: str, name: str, *, scaled: bool = True) -> Process:
        start_s = self.env.now
        if scaled:
            yield from self.slow.compute(self.env, seconds)
        elif seconds > 0:
            yield self.env.timeout(seconds)
        self._gpu_span(kind, name, start_s)

    def _pay_debt(self, name: str) -> Process:
        """Give back the GPU time that collectives took while this layer ran."""
        while self._debt_s > 0:
            start_s, owed_s, self._debt_s = self.env.now, self._debt_s, 0.0
            yield from self.slow.compute(self.env, owed_s)
            self._gpu_span("selection", f"shared with {name}", start_s)

    def _gpu_span(self, kind: str, name: str, start_s: float) -> None:
        if self.env.now > start_s:
            self._current.append(Span(self.track, name, kind, start_s, self.env.now))  # type: ignore[arg-type]

    # ---- communication

    def _members(self, plan: str, group: Group) -> list[Sequence[Ints]]:
        """GPUs of each rank of the groups that are simulated, on each channel."""
        if (plan, group) not in self._placed:
            self._placed[plan, group] = [self._place(plan, ranks) for ranks in self._ranks(group)]
        return self._placed[plan, group]

    def _place(self, plan: str, ranks: Ints) -> Sequence[Ints]:
        """Lay a group, whose rings and channels run over its own GPUs only."""
        if self.recipe.place is None or len(ranks) == self.groups.ranks:
            return self.placement(plan)
        return self.recipe.place(ranks).of(plan)

    def _ranks(self, group: Group) -> list[Ints]:
        return [np.asarray(ranks) for ranks in self.groups.of(group)]

    def _all_to_all(self, operation: Operation, track: str) -> Process:
        """Exchange of activations between experts, or of rows between tables."""
        plan = exchange_plan(self.recipe, self.groups, operation.size, operation.group)
        yield from self._run_groups(Chosen(plan), self._members(plan.name, operation.group),
                                    Timeline(self.env, self.record, track), operation.name)

    def _overlap(self, operation: Operation) -> Process:
        """Collective of activations while the GPU computes, behind those that were begun before."""
        streams = self._sending if operation.kind == "overlapped-send" else self._overlapping
        stream = yield from streams.take()
        self._count_running(1)
        if operation.kind == "overlapped":
            yield from self._all_to_all(operation, stream)
        elif operation.kind == "overlapped-send":
            yield from self._send(operation, stream)
        else:
            yield from self._reduce(operation, stream)
        self._count_running(-1)
        streams.give_back(stream)

    def _reduce(self, operation: Operation, track: str) -> Process:
        """Collective of activations that ranks add up or gather."""
        line = Timeline(self.env, self.record, track)
        chosen = activation_plan(self.recipe, self.groups, COLLECTIVES[operation.kind],
                                 operation.size, operation.group)
        yield from self._run_groups(chosen, self._members(chosen.plan.name, operation.group), line,
                                    operation.name)

    def _send(self, operation: Operation, track: str) -> Process:
        """Activations to the next stage, and back."""
        plan = send_plan(self.recipe, operation.size)
        line = Timeline(self.env, self.record, track)
        yield from self._run_groups(Chosen(plan), self._members(plan.name, operation.group), line,
                                    operation.name)

    def _run_groups(self, chosen: Chosen, groups: Sequence[Sequence[Ints]], line: Timeline,
                    label: str) -> Process:
        """Run a plan in several groups of ranks at once; the timeline shows the last one to end.

        Of many groups it is the last of `MOST_SHOWN`, and then waits for the others.
        """
        assert self.comm is not None
        if len(groups) == 1:
            yield from self.comm.run(chosen.plan, groups[0], self._local_s, line, label,
                                     chosen.protocol)
            return
        each = -(-len(groups) // MOST_SHOWN)
        last: list[Span] = []
        end_s = self.env.now

        def run(number: int, group: Sequence[Ints]) -> Process:
            assert self.comm is not None
            nonlocal end_s, last
            spans: list[Span] = []
            shown = number % each == 0
            yield from self.comm.run(
                chosen.plan, group, self._local_s,
                Timeline(self.env, spans.append, line.track, names_limits=shown), label,
                chosen.protocol)
            if shown and self.env.now > end_s:
                end_s, last = self.env.now, spans

        yield self.env.all_of([self.env.process(run(number, group))
                               for number, group in enumerate(groups)])
        for span in last:
            line.record(span)
        if last and self.env.now > end_s:
            line.transfer(label, end_s, [(end_s, last[-1].limit)])

    def _beside(self, number: int, operation: Operation,
                done: Mapping[int, simpy.Event]) -> Process:
        """A collective beside the GPU: coordination, then its plan on one of the streams."""
        assert self.comm is not None
        for before in operation.after:
            yield done[before]
        if operation.kind == "backlog":
            line = Timeline(self.env, self.record, f"{self.track}/stream0")
            each_s = self.env.now - self._done_s[operation.since]
            since_s = self.env.now
            limit = next((span.limit for span in reversed(self._current) if span.limit), "")
            yield self.env.timeout(operation.size * each_s)
            line.transfer(operation.name, since_s, [(since_s, limit)])  # as what it repeats
            self._done_s[number] = self.env.now
            done[number].succeed()
            return
        if operation.kind in OVERLAPPED:
            yield from self._overlap(operation)
            done[number].succeed()
            return
        if operation.delay_s > 0:
            yield self.env.timeout(operation.delay_s)
        label = operation.name
        costs = self.recipe.costs
        since_s = yield from self._coordinator.serve(
            costs.per_tensor.value + self.island * costs.per_rank.value)
        Timeline(self.env, self.record, f"{self.track}/coordinator").span(
            label, "negotiation", since_s)
        stream = yield from self._streams.take()
        line = Timeline(self.env, self.record, stream)
        if operation.kind == "average":
            yield from self._cast(operation, line)
        self._count_running(1)
        elements = -(-operation.size // self.recipe.layout.tensor)  # the share of each GPU
        chosen = (choose_plan(self.recipe, self.groups, elements, operation.group)
                  if operation.kind == "average" else
                  share_plan(self.recipe, self.groups, COLLECTIVES[operation.kind], elements,
                             operation.group))
        yield from self._run_groups(chosen, self._members(chosen.plan.name, operation.group),
                                    line, label)
        self._count_running(-1)
        self._streams.give_back(stream)
        self._done_s[number] = self.env.now
        if number in done:
            done[number].succeed()

    def announce(self) -> None:
        """Announce the flows of the largest average, for ``routing: plan``."""
        elements = max((tensor.elements for tensor in self.recipe.model.tensors), default=0)
        if self.comm is None or not elements:
            return
        plan = choose_plan(self.recipe, self.groups,
                           -(-elements // self.recipe.layout.tensor)).plan
        for members in self._members(plan.name, "replicas"):
            self.comm.announce(plan, members)

    def _cast(self, operation: Operation, line: Timeline) -> Process:
        """Turn fp32 gradients to fp16 and, later, back: both are paid here."""
        if self.recipe.fp16 and self.recipe.gradient_bytes == FP32_BYTES:
            seconds = 2 * self.recipe.costs.cast_per_element.value * operation.size
            self._debt_s += self._kernel_delay * seconds
            yield from line.wait(seconds, "selection", f"{operation.name} cast")

    def _local_s(self, cost: LocalCost) -> float:
        """Time of a GPU's own work in a collective; the backward pass owes it as well."""
        costs = self.recipe.costs
        byte_s = costs.cast_per_element.value / CAST_BYTES
        each = {Op.SELECT: costs.selection_per_element.value,
                Op.SCATTER_ADD: costs.scatter_per_element.value,
                Op.ENCODE: byte_s * ENCODE_BYTES, Op.DECODE: byte_s * DECODE_BYTES}
        seconds = each.get(cost.op, 0.0) * float(cost.elements.max())
        self._debt_s += self._kernel_delay * seconds
        return seconds

    def placement(self, plan: str) -> Sequence[Ints]:
        """GPU of each rank on each channel; rings may lie otherwise than the rest."""
        assert self.recipe.placement is not None
        return self.recipe.placement.of(plan)

    # ---- accounts

    def _finish(self, start_s: float, compute_end_s: float, network_end_s: float,
                overhead_s: float) -> None:
        counts = len(self.steps_s) < self.counted
        self.steps_s.append((start_s, self.env.now))
        if not counts:
            return
        # Spans that began in a step before count from this one's beginning.
        spans = tuple(span if span.start_s >= start_s else span._replace(start_s=start_s)
                      for span in self._current)
        owed_s = sum(s.end_s - s.start_s for s in spans
                     if s.track == self.track and s.kind == "selection")
        exchanges = [s for s in spans if s.track == self._exchange_track]
        network = tuple(s for s in spans if s.track not in (self.track, self._exchange_track))
        parts = exposed(network, compute_end_s, network_end_s)
        compute_s = compute_end_s - start_s - owed_s + overhead_s
        for since_s, until_s in self._waits:
            for kind, seconds in exposed(network, since_s, until_s).items():
                parts[kind] += seconds
            compute_s -= until_s - since_s
        compute_s += self._late_s
        for since_s, until_s in self._late_waits:
            for kind, seconds in exposed(network, since_s, until_s).items():
                parts[kind] += seconds
            compute_s -= until_s - since_s
        for span in exchanges:
            parts[KINDS[span.kind]] += span.end_s - span.start_s
            compute_s -= span.end_s - span.start_s
        self.breakdowns.append(Breakdown(compute_s, parts["transfer"], owed_s + parts["selection"],
                                         parts["latency"], parts["message"]))
        if self.finds_paths:
            self.paths.append(critical_path(spans, self.steps_s[-1]))
        self.spans = spans


def largest_deviation(ranks: int) -> float:
    """Mean of the largest of ``ranks`` standard normal numbers, by Blom's approximation."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0
