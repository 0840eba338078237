"""A data-parallel training job as simpy processes: steps of compute and the collectives beside it.

A step: the forward pass; the backward pass layer by layer in reverse order, each layer's gradients
ready as it finishes; gradients fused into buckets; for each bucket a serial coordination, then a
collective on one of the ``streams``; the step ends when compute and all collectives are done. GPUs
of a job march together, at the pace of the slowest.

Experts of a Mixture of Experts are spread over all GPUs of the job. An expert layer waits for an
all-to-all before it (dispatch) and one after it (combine), and so does its backward pass, in which
they run the other way. Their time is exposed, whatever else the network does meanwhile.

Work that a collective puts on the GPU (top-k selection, casts) takes its time there and delays the
backward pass by the same time, since the two share one GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import simpy

from harp.collectives.ir import Op
from harp.collectives.registry import make_plan
from sim.results import Breakdown, Span
from sim.timeline import Timeline
from sim.workloads.buckets import DDP_FIRST_BYTES, ddp_buckets, horovod_buckets

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from harp.collectives.ir import LocalCost
    from harp.collectives.plan import Plan
    from harp.lightcc.settings import LightSettings
    from sim.collective import Communicator
    from sim.placement import Placement
    from sim.schema.parameters import FrameworkCosts
    from sim.workloads.buckets import Buckets
    from sim.workloads.layers import Layer
    from sim.workloads.models import Model

    Process = Generator[simpy.Event, Any, None]

FP32_BYTES, FP16_BYTES = 4, 2
LIGHT_PLANS = {"sparse-2d": "2d-topk", "sparse-flat": "topk", "2d": "2d", "ring": "ring"}
"""Plan of each algorithm that LightCC's settings choose."""
ALLTOALL_PLANS = {"direct": "alltoall", "hierarchical": "hierarchical-alltoall"}
"""Plan of each way in which experts exchange activations."""


@dataclass(frozen=True)
class Recipe:
    """What a job trains and how its gradients travel."""

    model: Model
    batch: int
    costs: FrameworkCosts
    allreduce: str = "ring"
    light: LightSettings | None = None
    group: int = 1
    """Ranks of a host, for the 2D algorithms."""
    fp16: bool = False
    """Gradients travel as fp16."""
    gradient_bytes: int = FP32_BYTES
    """Bytes of a gradient element as the backward pass leaves it."""
    fusion: str = "cycle"
    """Rule by which gradients fuse: ``cycle`` (Horovod) or ``size`` (DistributedDataParallel)."""
    threshold_bytes: int = 128 << 20
    cycle_s: float = 1e-3
    streams: int = 1
    alltoall: str = "direct"
    """How experts exchange activations: direct or hierarchical."""
    placement: Placement | None = None
    """Where ranks lie; None for a job of one GPU."""


class Work(NamedTuple):
    """A layer, or several in a row: what it computes, and what its experts exchange."""

    name: str
    seconds: float
    tensors: int
    """Gradient tensors that are ready after it."""
    exchange_bytes: int
    """Bytes that a GPU gives to an all-to-all before it, and to another one after it."""


@dataclass(frozen=True)
class Pass:
    """Compute of one step on the slowest GPU, without any communication."""

    forward: tuple[Work, ...]
    """Forward order; layers without experts are joined."""
    layers: tuple[Work, ...]
    """Backward order."""
    buckets: Buckets
    bucket_layer: NDArray[np.int64]
    """For each bucket the backward layer after which it is complete."""
    bucket_delay_s: NDArray[np.float64]
    """From that layer's end to the launch (waiting for the cycle, or for a poor overlap)."""
    elements: NDArray[np.int64]
    """Elements of each bucket."""

    @property
    def compute_s(self) -> float:
        """Forward and backward pass."""
        return sum(work.seconds for work in self.forward + self.layers)


def plan_pass(recipe: Recipe, flops: float) -> Pass:
    """Times of one step's compute at ``flops`` FLOP/s, and its buckets.

    Buckets form as if experts exchanged nothing; their times count from the end of a layer.
    """
    forward = _forward(recipe, flops)
    backward = recipe.model.layers[::-1]
    layers = tuple(Work(layer.name, recipe.batch * layer.backward_flops / flops, len(layer.tensors),
                        _exchange_bytes(recipe, layer)) for layer in backward)
    ends_s = (sum(work.seconds for work in forward)
              + np.cumsum([work.seconds for work in layers]))
    owner = np.repeat(np.arange(len(layers)), [work.tensors for work in layers])
    elements = np.array([tensor.elements for layer in backward
                         for tensor in reversed(layer.tensors)], np.int64)
    buckets = _fuse(recipe, elements * recipe.gradient_bytes, ends_s[owner])
    last = owner[buckets.first[1:] - 1]
    overlap = recipe.costs.overlap.value
    # A poor overlap holds a bucket back for a share of what is left of the backward pass.
    held_s = (1.0 - overlap) * np.maximum(ends_s[-1] - buckets.launch_s, 0.0)
    return Pass(forward, layers, buckets, last, buckets.launch_s + held_s - ends_s[last],
                np.add.reduceat(elements, buckets.first[:-1]))


def _fuse(recipe: Recipe, nbytes: NDArray[np.int64], ready_s: NDArray[np.float64]) -> Buckets:
    if recipe.fusion == "cycle":
        return horovod_buckets(nbytes, ready_s, threshold_bytes=recipe.threshold_bytes,
                               cycle_s=recipe.cycle_s)
    first_bytes = min(DDP_FIRST_BYTES, max(recipe.threshold_bytes, 1))
    return ddp_buckets(nbytes, ready_s, first_bytes=first_bytes,
                       bucket_bytes=max(recipe.threshold_bytes, 1))


def _forward(recipe: Recipe, flops: float) -> tuple[Work, ...]:
    """Forward pass; layers between expert layers are one piece."""
    pieces: list[Work] = []
    for with_experts, layers in groupby(recipe.model.layers, lambda layer: layer.alltoall_elements):
        run = list(layers)
        pieces.append(Work(run[0].name if with_experts else "forward",
                           recipe.batch * sum(layer.forward_flops for layer in run) / flops, 0,
                           _exchange_bytes(recipe, run[0])))
    return tuple(pieces)


def _exchange_bytes(recipe: Recipe, layer: Layer) -> int:
    """Bytes that a GPU gives to one all-to-all; activations have the type of the gradients."""
    return recipe.batch * layer.alltoall_bytes(recipe.gradient_bytes)


class Job:
    """One training job; `run` is its simpy process.

    Attributes:
        steps_s: start and end of each finished step.
        breakdowns: where each step's time went.
        spans: the timeline of the last finished step, or of number ``counted`` if that is earlier.
        counted: steps that count; those after them only keep other jobs company.
    """

    def __init__(self, env: simpy.Environment, recipe: Recipe, comm: Communicator | None,
                 gpus: int, work: Pass, track: str) -> None:
        self.env, self.recipe, self.comm, self.gpus, self.work = env, recipe, comm, gpus, work
        self.slow = Slowness()
        self.track = track
        self.steps_s: list[tuple[float, float]] = []
        self.breakdowns: list[Breakdown] = []
        self.spans: tuple[Span, ...] = ()
        self.counted: float = math.inf
        self._current: list[Span] = []
        self._debt_s = 0.0
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

    # ---- compute

    def _layer(self, kind: str, work: Work) -> Process:
        """One layer, in either direction; experts exchange before and after it."""
        yield from self._exchange(work.exchange_bytes, f"{work.name} in")
        yield from self._compute(work.seconds, kind, work.name)
        yield from self._exchange(work.exchange_bytes, f"{work.name} out")

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
            yield self.env.timeout(owed_s)
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
            self._exchanges[nbytes] = make_plan(
                ALLTOALL_PLANS[self.recipe.alltoall], ranks=self.gpus, nbytes=nbytes,
                unit_bytes=self.recipe.gradient_bytes, group=min(self.recipe.group, self.gpus))
        return self._exchanges[nbytes]

    def _bucket(self, index: int, ready: simpy.Event) -> Process:
        assert self.comm is not None
        yield ready
        delay_s = float(self.work.bucket_delay_s[index])
        if delay_s > 0:
            yield self.env.timeout(delay_s)
        label = f"bucket {index}"
        with self._coordinator.request() as turn:
            yield turn
            coordinator = Timeline(self.env, self.record, f"{self.track}/coordinator")
            yield from coordinator.wait(self.recipe.costs.per_tensor.value, "negotiation", label)
        stream = yield self._streams.get()
        line = Timeline(self.env, self.record, stream)
        yield from self._cast(index, line, label)
        plan = self._plan(int(self.work.elements[index]))
        yield from self.comm.run(plan, self.placement(plan.name), self._local_s, line, label)
        yield self._streams.put(stream)

    def _cast(self, index: int, line: Timeline, label: str) -> Process:
        """Turn fp32 gradients to fp16 and, later, back: both are paid here."""
        if self.recipe.fp16 and self.recipe.gradient_bytes == FP32_BYTES:
            seconds = 2 * self.recipe.costs.cast_per_element.value * int(self.work.elements[index])
            self._debt_s += seconds
            yield from line.wait(seconds, "selection", f"{label} cast")

    def _local_s(self, cost: LocalCost) -> float:
        """Time of a GPU's own work in a collective; the backward pass owes it as well."""
        seconds = 0.0
        if cost.op == Op.SELECT:
            seconds = self.recipe.costs.selection_per_element.value * float(cost.elements.max())
        self._debt_s += seconds
        return seconds

    def placement(self, plan: str) -> Sequence[NDArray[np.int64]]:
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
        self.steps_s.append((start_s, self.env.now))
        if len(self.steps_s) <= self.counted:
            self.spans = spans


class Slowness:
    """Speed of a job's slowest GPU over time: the smallest factor of the faults in force."""

    def __init__(self) -> None:
        self.factors: dict[str, float] = {}
        self._changed: list[simpy.Event] = []

    def set(self, fault: str, factor: float | None) -> None:
        """Put a fault in force, or (None) take it out."""
        if factor is None:
            self.factors.pop(fault, None)
        else:
            self.factors[fault] = factor
        waiting, self._changed = self._changed, []
        for event in waiting:
            event.succeed()

    def compute(self, env: simpy.Environment, seconds: float) -> Process:
        """Do ``seconds`` of work at the speed of the moment."""
        left_s, done = seconds, seconds <= 0
        while not done:
            speed = min(self.factors.values(), default=1.0)
            start_s, changed, end = env.now, env.event(), env.timeout(max(left_s, 0.0) / speed)
            self._changed.append(changed)
            yield end | changed
            left_s -= (env.now - start_s) * speed
            done = end.processed
            if changed in self._changed:
                self._changed.remove(changed)


def choose_plan(recipe: Recipe, ranks: int, elements: int) -> Plan:
    """The plan that averages ``elements`` gradient elements over ``ranks`` ranks."""
    unit = FP16_BYTES if recipe.fp16 else recipe.gradient_bytes
    name, group = recipe.allreduce, recipe.group
    ratio: float | Fraction = 1.0
    value_bytes = unit
    if name == "light":
        assert recipe.light is not None
        choice = recipe.light.choose(elements * recipe.gradient_bytes)
        name, group, ratio = LIGHT_PLANS[choice.algorithm], choice.intra_size, choice.ratio
        value_bytes = FP16_BYTES if choice.fp16 else FP32_BYTES
    return make_plan(name, ranks=ranks, nbytes=elements * unit, unit_bytes=unit,
                     group=min(group, ranks), ratio=float(ratio), value_bytes=value_bytes)


KINDS = {"transfer": "transfer", "selection": "selection", "latency": "latency",
         "message": "message", "negotiation": "message"}


def exposed(spans: tuple[Span, ...], start_s: float, end_s: float) -> dict[str, float]:
    """Split [start_s, end_s] by what the network did, in seconds by kind.

    Where several things happen at once, transfer comes before selection, latency and message cost.
    What no span covers is waiting for a turn or a cycle and counts as message cost.
    """
    parts = dict.fromkeys(("transfer", "selection", "latency", "message"), 0.0)
    inside = [s for s in spans if s.end_s > start_s]
    cuts = {start_s, end_s}
    for span in inside:
        cuts |= {max(span.start_s, start_s), min(span.end_s, end_s)}
    edges = sorted(cut for cut in cuts if start_s <= cut <= end_s)
    order = list(parts)
    for left_s, right_s in pairwise(edges):
        kinds = {KINDS.get(s.kind, "message") for s in inside
                 if s.start_s <= left_s and s.end_s >= right_s}
        parts[min(kinds, key=order.index, default="message")] += right_s - left_s
    return parts


def mean_breakdown(breakdowns: list[Breakdown]) -> Breakdown:
    """Mean of each part."""
    parts = np.array([[b.compute_s, b.exposed_transfer_s, b.selection_s, b.latency_s, b.message_s]
                      for b in breakdowns]).mean(axis=0)
    assert math.isfinite(parts.sum())
    return Breakdown(*(float(part) for part in parts))
