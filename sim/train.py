"""A data-parallel training job as simpy processes: steps of compute and the collectives beside it.

A step: the forward pass; the backward pass layer by layer in reverse order, each layer's gradients
ready as it finishes; gradients fused into buckets; for each bucket a serial coordination, then a
collective on one of the ``streams``; the step ends when compute and all collectives are done. GPUs
of a job march together, at the pace of the slowest.

Experts of a Mixture of Experts are spread over all GPUs of the job. An expert layer waits for an
all-to-all before it (dispatch) and one after it (combine), and so does its backward pass, in which
they run the other way. Their time is exposed, whatever else the network does meanwhile.

Work that a collective puts on the GPU (top-k selection and scatter-add, casts) takes its time there
and delays the backward pass by the same time, since the two share one GPU. A collective's own
kernels slow the backward pass down by a factor while they run. Compute times of ranks differ from
step to step, and a step waits for the slowest: all compute is stretched by the mean of the largest
of n normal deviations (Blom's approximation).
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import simpy

from harp.collectives.ir import Op
from sim.compute import Slowness
from sim.critical_path import critical_path
from sim.exposure import KINDS, exposed
from sim.recipe import FP32_BYTES, choose_plan, exchange_plan
from sim.results import Breakdown, Span
from sim.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from harp.collectives.ir import LocalCost
    from harp.collectives.plan import Plan
    from sim.collective import Communicator
    from sim.compute import Pass, Work
    from sim.recipe import Recipe
    from sim.results import Limit

    Ints = NDArray[np.int64]
    Process = Generator[simpy.Event, Any, None]


class Job:
    """One training job; `run` is its simpy process.

    Attributes:
        steps_s: start and end of each finished step.
        breakdowns: where the time of each step that counts went.
        paths: what each step that counts waited for.
        spans: the timeline of the last of them.
        counted: steps that count; those after them only keep other jobs company.
    """

    def __init__(self, env: simpy.Environment, recipe: Recipe, comm: Communicator | None,
                 gpus: int, work: Pass, track: str) -> None:
        self.env, self.recipe, self.comm, self.gpus, self.work = env, recipe, comm, gpus, work
        self.slow = Slowness()
        self.track = track
        self.steps_s: list[tuple[float, float]] = []
        self.breakdowns: list[Breakdown] = []
        self.paths: list[tuple[Limit, ...]] = []
        self.spans: tuple[Span, ...] = ()
        self.counted: float = math.inf
        self._current: list[Span] = []
        self._debt_s = 0.0
        self._running, self._running_since_s, self._ran_s = 0, 0.0, 0.0
        self._stretch = 1.0 + recipe.costs.jitter.value * largest_deviation(gpus)
        self._coordinator = simpy.Resource(env, 1)
        self._streams = simpy.Store(env)
        for number in range(recipe.streams):
            self._streams.put(f"{track}/stream{number}")
        self._plans: dict[int, Plan] = {}
        self._exchanges: dict[int, Plan] = {}
        self._exchange_track = f"{track}/alltoall"

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
        self._current, self._debt_s = [], 0.0
        for work in self.work.forward:
            yield from self._layer("forward", work)
        ready = [self.env.event() for _ in self.work.layers]
        collectives = []
        if self.comm is not None:
            collectives = [self.env.process(self._bucket(i, ready[layer]))
                           for i, layer in enumerate(self.work.bucket_layer.tolist())]
        for work, event in zip(self.work.layers, ready, strict=True):
            yield from self._layer("backward", work)
            yield from self._pay_debt(work.name)
            event.succeed()
        compute_end_s = self.env.now
        yield self.env.all_of(collectives)
        network_end_s = self.env.now
        overhead_s = self.recipe.costs.step_overhead.value if self.gpus > 1 else 0.0
        yield from self._compute(overhead_s, "update", "framework", scaled=False)
        self._finish(start_s, compute_end_s, network_end_s, overhead_s)

    def repeat_step(self, times: int) -> None:
        """Count the last step ``times`` more times."""
        self.steps_s += self.steps_s[-1:] * times
        self.breakdowns += self.breakdowns[-1:] * times
        self.paths += self.paths[-1:] * times

    # ---- compute

    def _layer(self, kind: str, work: Work) -> Process:
        """One layer, in either direction; experts exchange before and after it."""
        yield from self._exchange(work.exchange_bytes, f"{work.name} in")
        ran_s = self._collectives_s()
        yield from self._compute(work.seconds * self._stretch, kind, work.name)
        beside_s = self._collectives_s() - ran_s
        yield from self._compute(beside_s * (self.recipe.costs.slowdown.value - 1.0), kind,
                                 f"{work.name} slowed down")
        yield from self._exchange(work.exchange_bytes, f"{work.name} out")

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

    def _exchange(self, nbytes: int, label: str) -> Process:
        """All-to-all of the experts' activations, which compute waits for."""
        if nbytes and self.comm is not None:
            plan = self._exchange_plan(nbytes)
            line = Timeline(self.env, self.record, self._exchange_track)
            yield from self.comm.run(plan, self.placement(plan.name), self._local_s, line, label)

    def _exchange_plan(self, nbytes: int) -> Plan:
        if nbytes not in self._exchanges:
            self._exchanges[nbytes] = exchange_plan(self.recipe, self.gpus, nbytes)
        return self._exchanges[nbytes]

    def _bucket(self, index: int, ready: simpy.Event) -> Process:
        assert self.comm is not None
        yield ready
        delay_s = float(self.work.bucket_delay_s[index])
        if delay_s > 0:
            yield self.env.timeout(delay_s)
        label = self.work.names[index]
        with self._coordinator.request() as turn:
            yield turn
            coordinator = Timeline(self.env, self.record, f"{self.track}/coordinator")
            costs = self.recipe.costs
            seconds = costs.per_tensor.value + self.gpus * costs.per_rank.value
            yield from coordinator.wait(seconds, "negotiation", label)
        stream = yield self._streams.get()
        line = Timeline(self.env, self.record, stream)
        yield from self._cast(index, line, label)
        plan = self._plan(int(self.work.elements[index]))
        self._count_running(1)
        yield from self.comm.run(plan, self.placement(plan.name), self._local_s, line, label)
        self._count_running(-1)
        yield self._streams.put(stream)

    def _cast(self, index: int, line: Timeline, label: str) -> Process:
        """Turn fp32 gradients to fp16 and, later, back: both are paid here."""
        if self.recipe.fp16 and self.recipe.gradient_bytes == FP32_BYTES:
            seconds = 2 * self.recipe.costs.cast_per_element.value * int(self.work.elements[index])
            self._debt_s += seconds
            yield from line.wait(seconds, "selection", f"{label} cast")

    def _local_s(self, cost: LocalCost) -> float:
        """Time of a GPU's own work in a collective; the backward pass owes it as well."""
        costs = self.recipe.costs
        each = {Op.SELECT: costs.selection_per_element, Op.SCATTER_ADD: costs.scatter_per_element}
        seconds = each[cost.op].value * float(cost.elements.max()) if cost.op in each else 0.0
        self._debt_s += seconds
        return seconds

    def placement(self, plan: str) -> Sequence[Ints]:
        """GPU of each rank on each channel; rings may lie otherwise than the rest."""
        assert self.recipe.placement is not None
        return self.recipe.placement.of(plan)

    def _plan(self, elements: int) -> Plan:
        if elements not in self._plans:
            self._plans[elements] = choose_plan(self.recipe, self.gpus, elements)
        return self._plans[elements]

    # ---- accounts

    def _finish(self, start_s: float, compute_end_s: float, network_end_s: float,
                overhead_s: float) -> None:
        counts = len(self.steps_s) < self.counted
        self.steps_s.append((start_s, self.env.now))
        if not counts:
            return
        spans = tuple(self._current)
        owed_s = sum(s.end_s - s.start_s for s in spans
                     if s.track == self.track and s.kind == "selection")
        exchanges = [s for s in spans if s.track == self._exchange_track]
        network = tuple(s for s in spans if s.track not in (self.track, self._exchange_track))
        parts = exposed(network, compute_end_s, network_end_s)
        compute_s = compute_end_s - start_s - owed_s + overhead_s
        for span in exchanges:
            parts[KINDS[span.kind]] += span.end_s - span.start_s
            compute_s -= span.end_s - span.start_s
        self.breakdowns.append(Breakdown(compute_s, parts["transfer"], owed_s + parts["selection"],
                                         parts["latency"], parts["message"]))
        self.paths.append(critical_path(spans, self.steps_s[-1]))
        self.spans = spans


def largest_deviation(ranks: int) -> float:
    """Mean of the largest of ``ranks`` standard normal numbers, by Blom's approximation."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0
