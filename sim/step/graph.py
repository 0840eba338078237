"""A training step as a graph of operations: data-parallel, fully sharded, or tensor-parallel.

Operations on the GPU run one after the other in the order of the graph; the others begin when those
in ``after`` are done. All ranks of a job do the same, so one graph stands for all. `sim.step.train`
runs a graph.

Fully sharded data parallelism spreads parameters over the ranks, as well as gradients and states.
Before a unit (a block of the network) computes, its parameters are gathered from all ranks; then
they are dropped. After its backward pass its gradients are reduced and scattered. A step sends
three times the parameters, less each rank's own share: 3 (n - 1)/n elements for each one (ZeRO
stage 3: Rajbhandari et al., SC 2020, section 7.2.2). The next unit is gathered while one computes,
and no earlier: one unit is ahead (`forward_prefetch` and `BACKWARD_PRE` of Zhao et al., VLDB 2023,
section 3.3). A model without blocks is a single unit, as in FSDP without a wrapping policy.

Tensor parallelism splits every matrix over ``t`` GPUs of a host (Shoeybi et al. 2019). A block of a
transformer needs four allreduces of its activations in each step: after its attention and its
feed-forward network in the forward pass, before them in the backward pass (Megatron-LM, figure 4).
Each rank sends 2 (t - 1)/t of the activations' bytes in each. The GPU waits for them. Each GPU
holds 1/t of the parameters, which are averaged over the GPUs of the same number in all other
groups. Norms and biases that Megatron repeats on every GPU count as split.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Literal, NamedTuple

from sim.workloads.model import block_of

if TYPE_CHECKING:
    from sim.step.compute import Pass, Work
    from sim.step.recipe import Recipe


Kind = Literal["forward", "backward", "settle", "exchange", "reduce", "average", "gather",
               "scatter"]
ON_GPU = frozenset({"forward", "backward", "settle", "exchange", "reduce"})
"""Kinds that the GPU does or waits for; the others run beside it, on the job's streams."""


@dataclass(frozen=True)
class Operation:
    """One operation of every rank.

    - forward, backward: arithmetic of ``seconds``;
    - settle: the GPU gives back the time that collectives took of it;
    - exchange: an all-to-all of ``size`` bytes a rank, between experts;
    - reduce: an allreduce of ``size`` bytes within a tensor-parallel group;
    - average: an allreduce of ``size`` gradient elements over all replicas;
    - gather, scatter: an allgather to, a reduce-scatter of ``size`` parameter elements.
    """

    kind: Kind
    name: str
    seconds: float = 0.0
    size: int = 0
    after: tuple[int, ...] = ()
    """Numbers of the operations that must be done before; of those on the GPU, beside its order."""
    delay_s: float = 0.0
    """From then to the launch: waiting for a cycle, or an overlap that is not whole."""


Graph = tuple[Operation, ...]


def data_parallel(work: Pass, *, averaged: bool = True) -> Graph:
    """Every rank holds the whole model: gradients are averaged while the backward pass runs.

    Experts exchange before and after their layer. Nothing is averaged where there is one replica.
    """
    graph: list[Operation] = []
    done: list[int] = []
    passes: tuple[tuple[Kind, tuple[Work, ...]], ...] = (("forward", work.forward),
                                                         ("backward", work.layers))
    for kind, layers in passes:
        for layer in layers:
            if layer.exchange_bytes:
                graph.append(Operation("exchange", f"{layer.name} in", size=layer.exchange_bytes))
            graph.append(Operation(kind, layer.name, layer.seconds))
            if layer.exchange_bytes:
                graph.append(Operation("exchange", f"{layer.name} out", size=layer.exchange_bytes))
            if kind == "backward":
                graph.append(Operation("settle", layer.name))
                done.append(len(graph) - 1)
    if averaged:
        graph += averages(work, done)
    return tuple(graph)


def averages(work: Pass, done: list[int]) -> list[Operation]:
    """Averages of the buckets, each after the operation that completes its last layer."""
    return [Operation("average", name, size=elements, after=(done[layer],), delay_s=delay_s)
            for name, elements, layer, delay_s in zip(
                work.names, work.elements.tolist(), work.bucket_layer.tolist(),
                work.bucket_delay_s.tolist(), strict=True)]


class Unit(NamedTuple):
    """What is gathered at once."""

    name: str
    elements: int
    forward_s: float
    backward_s: float


def units(recipe: Recipe, flops: float) -> list[Unit]:
    """The model's blocks, and what lies between them, in forward order."""
    found = []
    for name, layers in groupby(recipe.model.layers, block_of):
        some = list(layers)
        found.append(Unit(name or some[0].name,
                          sum(tensor.elements for layer in some for tensor in layer.tensors),
                          recipe.batch * sum(layer.forward_flops for layer in some) / flops,
                          recipe.batch * sum(layer.backward_flops for layer in some) / flops))
    return found


def fully_sharded(recipe: Recipe, flops: float) -> Graph:
    """The graph of a step."""
    forward = units(recipe, flops)
    graph: list[Operation] = []
    _pass(graph, "forward", [(unit, unit.forward_s) for unit in forward])
    _pass(graph, "backward", [(unit, unit.backward_s) for unit in reversed(forward)])
    return tuple(graph)


def _pass(graph: list[Operation], kind: Kind, parts: list[tuple[Unit, float]]) -> None:
    """One pass over the units: gather, compute and, going backward, scatter."""
    computed = [number for number, done in enumerate(graph) if done.kind == "forward"][-1:]
    for unit, seconds in parts:
        after: tuple[int, ...] = ()
        if unit.elements:
            # What computes before the unit begins when what computed before that has ended.
            ahead = tuple(computed[-2:-1] or (computed if kind == "backward" else ()))
            graph.append(Operation("gather", f"{unit.name} {kind}", size=unit.elements,
                                   after=ahead))
            after = (len(graph) - 1,)
        graph.append(Operation(kind, unit.name, seconds, after=after))
        computed.append(len(graph) - 1)
        if kind == "backward":
            graph.append(Operation("settle", unit.name))
            if unit.elements:
                graph.append(Operation("scatter", unit.name, size=unit.elements,
                                       after=(len(graph) - 1,)))


EACH_WAY = 2
"""Allreduces of a block in either pass."""


def tensor_parallel(recipe: Recipe, work: Pass, *, averaged: bool) -> Graph:
    """The graph of a step, from the times and buckets of one GPU of a group.

    Args:
        recipe: the model and how it is trained.
        work: compute of a GPU, by layer.
        averaged: whether there are other groups to average with.
    """
    nbytes = recipe.batch * recipe.model.activations * recipe.gradient_bytes
    graph: list[Operation] = []
    forward_s = sum(piece.seconds for piece in work.forward)
    whole = sum(layer.forward_flops for layer in recipe.model.layers)
    for name, layers in groupby(recipe.model.layers, block_of):
        some = list(layers)
        seconds = forward_s * sum(layer.forward_flops for layer in some) / whole
        graph.append(Operation("forward", name or some[0].name, seconds))
        graph += _reduces(name, nbytes)
    done = []
    backward = zip(recipe.model.layers[::-1], work.layers, strict=True)
    for name, pairs in groupby(backward, lambda pair: block_of(pair[0])):
        for _, layer in pairs:
            graph += [Operation("backward", layer.name, layer.seconds),
                      Operation("settle", layer.name)]
            done.append(len(graph) - 1)
        graph += _reduces(name, nbytes)
    return tuple(graph + averages(work, done)) if averaged else tuple(graph)


def _reduces(block: str, nbytes: int) -> list[Operation]:
    return [Operation("reduce", f"{block} activations", size=nbytes)] * EACH_WAY if block else []
