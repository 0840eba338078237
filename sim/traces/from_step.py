"""A training step as Chakra execution traces, one for each rank.

The operations are those of `sim.step.step_graph`, each micro-step by itself. A rank's compute is a
chain of nodes with whole microseconds, rounded such that sums stay exact, and with the FLOPs that
they are worth at the GPU's rate. Collectives that the GPU waits for are links of that chain; those
beside it wait for the operation that completes their bytes, for the framework's coordination (a
node of the CPU) and for a stream, in the order in which they would ask for one if the GPU never
waited. The last node is the framework's work of a step, for which everything is done.

An average that is not launched at once (Horovod's cycles, an overlap that is not whole) waits for
the operation of the GPU during which it would be, and beyond the last one for the CPU. Work that
collectives put on the GPU (casts, slower kernels) is left out. Pipelines, in which one stage stands
for all, top-k and hosts that meet rarely are refused.

Groups are numbered from 1 on, since ASTRA-sim wants numbers; "0" is all ranks.
"""

from __future__ import annotations

import json
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from harp.lightcc.policy import FP16_BYTES
from sim.schema.input_errors import Problem
from sim.step.outer import OuterJob
from sim.step.recipe import choose_plan
from sim.step.step_graph import ON_GPU, OVERLAPPED, may_outlast, step_graph
from sim.traces.chakra_format import (
    COLL,
    COLLECTIVES,
    COMP,
    METADATA,
    Attribute,
    Metadata,
    Node,
    Values,
)

if TYPE_CHECKING:
    from sim.step.groups import Group, Groups
    from sim.step.step_graph import Operation
    from sim.step.train import Job

VERSION = "0.0.4"
"""Of the schema, as Chakra's own generators write it."""
NAMES = {"average": "all-reduce", "reduce": "all-reduce", "gather": "all-gather",
         "collect": "all-gather", "scatter": "reduce-scatter", "spread": "reduce-scatter",
         "exchange": "all-to-all", "overlapped": "all-to-all",
         "overlapped-reduce": "all-reduce"}
"""Chakra's collective of each kind of operation."""
SHARED: tuple[Group, ...] = ("replicas", "shard", "copies")
"""Groups whose ranks have a tensor-parallel share of the elements each."""


class StepTraces(NamedTuple):
    """Contents of the trace files."""

    metadata: Metadata
    ranks: tuple[tuple[Node, ...], ...]
    groups: dict[str, tuple[int, ...]]
    """By name, all but that of all ranks."""


def step_traces(job: Job, flops: float) -> StepTraces:
    """Traces of a job's step, on GPUs of ``flops`` FLOP/s; raises Problem."""
    _check(job)
    graph = step_graph(job.recipe, job.work, job.groups, alike=False)
    if any(operation.kind == "launch" for operation in graph):
        raise Problem("traces do not have the host launch kernels one by one",
                      allowed="a framework without launch_per_layer and launch_per_product")
    names: dict[tuple[int, ...], str] = {tuple(range(job.gpus)): "0"}
    for operation in graph:
        for rank in range(job.gpus) if operation.kind in NAMES else ():
            names.setdefault(members(job.groups, operation.group, rank), str(len(names)))
    groups = {name: ranks for ranks, name in names.items() if name != "0"}
    return StepTraces(
        Metadata(VERSION), tuple(tuple(_Rank(job, rank, flops, names).nodes(graph))
                                 for rank in range(job.gpus)), groups)


def members(groups: Groups, group: Group, rank: int) -> tuple[int, ...]:
    """Ranks of the group that ``rank`` is in, of a job without a pipeline."""
    count, tensor, sharded = groups.ranks, groups.layout.tensor, groups.sharded
    wide = tensor * groups.layout.context

    def block(size: int, step: int = 1) -> range:
        first = rank - rank % size
        return range(first + rank % size % step, first + size, step)

    found = {"replicas": range(rank % tensor, count, tensor), "tensor": block(tensor),
             "context": block(wide, tensor), "experts": block(groups.spread, tensor),
             "expert copies": range(rank % groups.spread, count, groups.spread),
             "expert shards": block(sharded, groups.spread),
             "shard": block(sharded, tensor),
             "copies": range(rank % sharded, count, sharded)}
    return tuple(found[group])


def _check(job: Job) -> None:
    """Raise Problem for a step that traces cannot hold."""
    if isinstance(job, OuterJob):
        raise Problem("hosts that meet rarely are no step", allowed="a scenario without sync")
    if job.recipe.layout.pipeline > 1:
        raise Problem("one stage of a pipeline stands for all, and traces need each",
                      allowed="a scenario without pipeline")
    if job.recipe.allreduce == "light" and job.gpus > 1:
        largest = max(tensor.elements for tensor in job.recipe.model.tensors)
        if "topk" in choose_plan(job.recipe, job.groups, largest).plan.name:
            raise Problem("Chakra has no collective that sends the largest elements only",
                          allowed="a scenario without top-k")


def in_order(nodes: list[Node]) -> list[Node]:
    """The same nodes, each after those that it waits for and numbered by its place."""
    waits = [len(node.data_deps) for node in nodes]
    followers: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        for parent in node.data_deps:
            followers[parent].append(number)
    ready = [number for number, count in enumerate(waits) if not count]
    heapify(ready)
    place: dict[int, int] = {}
    while ready:
        number = heappop(ready)
        place[number] = len(place)
        for follower in followers[number]:
            waits[follower] -= 1
            if not waits[follower]:
                heappush(ready, follower)
    assert len(place) == len(nodes), "a circle"
    return [replace(nodes[number], id=place[number],
                    data_deps=tuple(place[parent] for parent in nodes[number].data_deps))
            for number in place]


class _Rank:
    """Makes the nodes of one rank."""

    def __init__(self, job: Job, rank: int, flops: float,
                 names: dict[tuple[int, ...], str]) -> None:
        self.job, self.rank, self.flops, self.names = job, rank, flops, names
        self.made: list[Node] = []
        self.last: int | None = None
        """Node of the chain of the GPU."""
        self.overlapped: list[int] = []
        """The last all-to-all of a chunk of tokens, which the next one waits for."""
        self.beside: list[int] = []
        self.ready: dict[int, float] = {}
        """Time at which each of them asks for a stream, if the GPU never waits."""
        self.late: list[tuple[Operation, list[int]]] = []
        """Averages, which may wait before they are launched, and what completes them."""
        self.idle_s = 0.0
        """Time beyond the GPU's last operation in which the CPU waits for such."""
        self.chain: dict[int, float] = {}
        """End of each node of the chain, if the GPU never waits."""
        self.whole_s = 0.0
        self.whole_us = 0

    def nodes(self, graph: tuple[Operation, ...]) -> list[Node]:
        """All of them."""
        ends: list[int | None] = []
        self._groups()
        for operation in graph:
            after = [end for number in operation.after if (end := ends[number]) is not None]
            ends.append(self._operation(operation, after))
        for operation, after in self.late:
            self._launch(operation, *self._launched(after, operation.delay_s))
        overhead_s = self.job.recipe.costs.step_overhead.value if self.job.gpus > 1 else 0.0
        self._compute("update", overhead_s + self.job.update_s * self.job.stretch, self.beside,
                      flops=False)
        self._queue()
        return in_order(self.made)

    def _queue(self) -> None:
        """Let each collective beside the GPU wait for a stream."""
        turns = sorted(self.beside, key=lambda node: (self.ready[node], node))
        for before, node in zip(turns, turns[self.job.recipe.streams:], strict=False):
            made = self.made[node]
            self.made[node] = replace(made, data_deps=tuple(dict.fromkeys(
                [*made.data_deps, before])))

    def _operation(self, operation: Operation, after: list[int]) -> int | None:
        """Add an operation; its node, or the one that is done when it is."""
        if operation.kind in ("forward", "backward"):
            return self._compute(f"{operation.kind} {operation.name}",
                                 operation.seconds * self.job.stretch, after)
        ranks = members(self.job.groups, operation.group, self.rank) if (
            operation.kind in NAMES) else ()
        if len(ranks) < 2:
            return self.last
        if operation.kind in ON_GPU:
            self.last = self._collective(operation, ranks, self._chain(after))
            return self.last
        if operation.kind in OVERLAPPED:
            self.overlapped = [self._collective(operation, ranks, [*after, *self.overlapped])]
            return self.overlapped[0]
        if operation.kind == "average":  # which nothing but the end of the step waits for
            self.late.append((operation, after))
            return None
        return self._launch(operation, after, 0.0)

    def _launched(self, after: list[int], delay_s: float) -> tuple[list[int], float]:
        """Operations that a late average waits for, and the further wait of the CPU."""
        if delay_s <= 0:
            return after, 0.0
        launch_s = delay_s + self._done_s(after)
        node = next((node for node, end_s in self.chain.items() if end_s >= launch_s), None)
        if node is not None:
            return [*after, node], 0.0
        more_s = max(launch_s - self.whole_s - self.idle_s, 0.0)
        self.idle_s += more_s
        return [*after, *self.chain][-1:], more_s

    def _done_s(self, after: list[int]) -> float:
        return max((self.chain.get(node, self.ready.get(node, 0.0)) for node in after),
                   default=0.0)

    def _launch(self, operation: Operation, after: list[int], idle_s: float) -> int:
        """Add a collective beside the GPU, with the CPU's coordination before it."""
        ranks = members(self.job.groups, operation.group, self.rank)
        costs = self.job.recipe.costs
        seconds = idle_s + costs.per_tensor.value + self.job.gpus * costs.per_rank.value
        ready_s, ready = self._done_s(after) + idle_s, after
        if round(seconds * 1e6):
            cpu = self._add(f"coordinate {operation.name}", COMP, after,
                            (Attribute("is_cpu_op", "bool", True),), round(seconds * 1e6))
            ready = [cpu, *ready]
        self.beside.append(self._collective(operation, ranks, ready))
        self.ready[self.beside[-1]] = ready_s
        return self.beside[-1]

    def _chain(self, after: list[int]) -> list[int]:
        return after if self.last is None else [self.last, *after]

    def _compute(self, name: str, seconds: float, after: list[int], *, flops: bool = True) -> int:
        self.whole_s += seconds
        microseconds = round(self.whole_s * 1e6) - self.whole_us
        self.whole_us += microseconds
        attributes = [Attribute("is_cpu_op", "bool", False)]
        if flops:
            attributes.append(Attribute("num_ops", "int64", round(seconds * self.flops)))
        self.last = self._add(name, COMP, self._chain(after), tuple(attributes), microseconds)
        self.chain[self.last] = self.whole_s
        return self.last

    def _collective(self, operation: Operation, ranks: tuple[int, ...], after: list[int]) -> int:
        name = NAMES[operation.kind]
        nbytes = self._bytes(operation)
        size = -(-nbytes // len(ranks)) if name == "all-gather" else nbytes
        return self._add(f"{operation.kind} {operation.name}", COLL, after, (
            Attribute("is_cpu_op", "bool", False),
            Attribute("comm_type", "int64", COLLECTIVES.index(name)),
            Attribute("comm_size", "int64", size),
            Attribute("pg_name", "string", self.names[ranks])))

    def _bytes(self, operation: Operation) -> int:
        """Bytes of the whole: of gradients or parameters, or activations as they are."""
        recipe = self.job.recipe
        if not may_outlast(operation.kind):
            return operation.size
        elements = operation.size
        if operation.group in SHARED:
            elements = -(-elements // recipe.layout.tensor)
        halved = operation.kind == "average" and recipe.fp16
        if operation.kind == "gather":
            return elements * recipe.element_bytes
        return elements * (FP16_BYTES if halved else recipe.gradient_bytes)

    def _groups(self) -> None:
        """The node that names the groups, as PyTorch's observer has it."""
        named = [{"pg_name": name, "ranks": list(ranks)} for ranks, name in self.names.items()]
        self._add("## process_group:init ##", METADATA, [], (),
                  inputs=Values(json.dumps(named)))

    def _add(self, name: str, kind: int, after: list[int], attributes: tuple[Attribute, ...],
             microseconds: int = 0, inputs: Values | None = None) -> int:
        number = len(self.made)
        self.made.append(Node(number, name, kind, data_deps=tuple(dict.fromkeys(after)),
                              duration_us=microseconds, attributes=attributes, inputs=inputs))
        return number
