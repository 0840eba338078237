"""A stage of a program as a module: operators between two cuts, and values that only pass through.

Values that cross the cut before a stage are its arguments, those behind it are its results, in
the order of the program. A value that skips the stage is both: the stage relays it, and its
gradient on the way back, so that every transfer is between neighbours, as
`torch.distributed.pipelining` wants it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import fx

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harp.angelptm.stages.operator_graph import Graph
    from harp.angelptm.stages.operator_program import Program


@dataclass(frozen=True)
class Value:
    """The form of a value that crosses a cut."""

    shape: torch.Size
    dtype: torch.dtype
    differentiable: bool

    def empty(self, device: torch.device) -> torch.Tensor:
        """Make such a tensor."""
        return torch.empty(self.shape, dtype=self.dtype, device=device,
                           requires_grad=self.differentiable)

    def gradient(self, device: torch.device) -> torch.Tensor | None:
        """Make a tensor like its gradient."""
        return self.empty(device).detach() if self.differentiable else None


def crossing(graph: Graph, forms: Sequence[Value | None], gap: int) -> list[Value]:
    """Give the forms of the values that cross a gap; at 0 and the end those of the model's own."""
    found = []
    for number in _at(graph, gap, len(forms)):
        form = forms[number]
        assert form is not None
        found.append(form)
    return found


def _at(graph: Graph, gap: int, end: int) -> Sequence[int]:
    if gap == 0:
        return range(graph.inputs)
    return graph.outputs if gap >= end else graph.crossing(gap)


def stage_module(program: Program, graph: Graph, begin: int, end: int) -> fx.GraphModule:
    """Make the module of the operators from one gap to another."""
    made, root = fx.Graph(), dict(program.modules)
    new: dict[fx.Node, fx.Node] = {}

    def of(node: fx.Node) -> fx.Node:
        if node not in new:
            name, value = program.attributes[node]
            root[name] = value
            new[node] = made.get_attr(name)
        return new[node]

    for number in _at(graph, begin, len(program.order)):
        node = program.order[number]
        new[node] = made.placeholder(node.name)
    inside = program.order[max(begin, len(program.inputs)):end]
    for node in inside:
        new[node] = made.node_copy(node, of)
    last = end >= len(program.order)
    results = [_leaving(made, new[program.order[number]], last,
                        graph.operators[number].differentiable)
               for number in _at(graph, end, len(program.order))]
    made.output(results[0] if len(results) == 1 else tuple(results))
    return fx.GraphModule(root, made)


def _leaving(made: fx.Graph, node: fx.Node, last: bool, differentiable: bool) -> fx.Node:
    """Make a value ready to be sent: in one piece, and no leaf of autograd's graph."""
    if last:
        return node
    whole = made.call_method("contiguous", (node,))
    return made.call_method("view_as", (whole, whole)) if differentiable else whole
