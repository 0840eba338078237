"""Fully sharded data parallelism: parameters lie spread over the ranks, as gradients and states do.

Before a unit (a block of the network) computes, its parameters are gathered from all ranks; behind
it they are dropped. After its backward pass its gradients are reduced and scattered. A step sends
three times the parameters, less each rank's own share: 3 (n - 1)/n elements for each one (ZeRO
stage 3: Rajbhandari et al., SC 2020, section 7.2.2). The next unit is gathered while one computes,
and no sooner: one unit is ahead (`forward_prefetch` and `BACKWARD_PRE` of Zhao et al., VLDB 2023,
section 3.3). A model without blocks is a single unit, as it is where nothing was wrapped.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from sim.step.graph import Operation
from sim.workloads.models import block_of

if TYPE_CHECKING:
    from sim.step.graph import Graph, Kind
    from sim.step.recipe import Recipe


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
