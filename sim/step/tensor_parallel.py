"""Tensor parallelism within a host: every matrix is split over ``t`` GPUs (Shoeybi et al. 2019).

A block of a transformer takes four allreduces of its activations a step: two behind its attention
and its feed-forward network on the way forward, two before them on the way back (Megatron-LM,
figure 4). Each rank sends 2 (t - 1)/t of the activations' bytes in each. The GPU waits for them.
Each GPU holds 1/t of the parameters, which are averaged over the GPUs of the same number in all
other groups. Norms and biases that Megatron repeats on every GPU count as split.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from sim.step.graph import Operation, averages
from sim.workloads.models import block_of

if TYPE_CHECKING:
    from sim.step.compute import Pass
    from sim.step.graph import Graph
    from sim.step.recipe import Recipe

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
