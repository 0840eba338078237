"""Times and sizes of a program's operators, measured on this machine, one after another.

Each operator runs forward and backward on its real arguments; the shortest of a few runs counts,
since other work on the machine can only lengthen it. The backward pass adds to a gradient that is
there already, as it does from the second microbatch on. For the backward pass an operator keeps
what autograd saves, each block of memory once, without parameters.
"""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from harp.angelptm.stages.operator_graph import Graph, Operator
from harp.angelptm.stages.operator_program import Program, layer_of
from harp.angelptm.stages.stage import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RUNS = 5


def measured(program: Program, example: Sequence[Any],
             loss: Callable[[Any], torch.Tensor] | None = None,
             runs: int = RUNS) -> tuple[Graph, list[Value | None]]:
    """Measure every operator, and the loss behind them; the loss is always in the last stage.

    Gives the forms of their values, too; None is something other than a tensor.
    """
    measure = _Measure(program, runs)
    with torch.random.fork_rng():
        graph = measure.graph(example, loss)
    return graph, [_form(measure.values[node]) for node in program.order]


class _Measure:
    """Goes through the program once."""

    def __init__(self, program: Program, runs: int) -> None:
        self.program, self.runs = program, runs
        self.number = {node: place for place, node in enumerate(program.order)}
        self.values: dict[fx.Node, Any] = {  # operators may write buffers
            node: value.clone() if isinstance(value, torch.Tensor)
            and not isinstance(value, nn.Parameter) else value
            for node, (_, value) in program.attributes.items()}
        self.parameters: dict[int, int] = {}
        self.parameter_bytes: list[int] = []
        self.saved: dict[int, int] = {}
        self.saved_bytes: list[int] = []
        self.kept: list[torch.Tensor] = []  # so that no address is used twice
        self.written: list[tuple[int, int]] = []  # gaps from a value to what changes it in place

    def graph(self, example: Sequence[Any],
              loss: Callable[[Any], torch.Tensor] | None) -> Graph:
        """Measure all."""
        operators = []
        for node, value in zip(self.program.inputs, example, strict=True):
            self.values[node] = value
            operators.append(Operator(node.name, (), _size(value), _has_gradient(value)))
        operators.extend(self.operator(node) for node in self.program.operators)
        outputs = tuple(self.number[node] for node in self.program.outputs)
        closed = self.closed()
        if loss is not None:
            operators.append(self.loss(loss))
            closed.add(len(operators) - 1)
        return Graph(tuple(operators), len(self.program.inputs), outputs,
                     tuple(self.parameter_bytes), tuple(self.saved_bytes), frozenset(closed))

    def operator(self, node: fx.Node) -> Operator:
        """Run and time an operator."""
        run = _Run(self.program, node, self.values)
        own = {one.untyped_storage().data_ptr() for one in (
            *(self.values[node] for node in self.program.attributes),
            *run.parameters()) if isinstance(one, torch.Tensor)}
        saved: set[int] = set()

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            block = tensor.untyped_storage()
            if block.data_ptr() not in own:
                if block.data_ptr() not in self.saved:
                    self.saved[block.data_ptr()] = len(self.saved_bytes)
                    self.saved_bytes.append(block.nbytes())
                    self.kept.append(tensor.detach())
                saved.add(self.saved[block.data_ptr()])
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            value = run.forward()
        forward_s, backward_s = _times(run, self.runs)
        self.values[node] = pytree.tree_map_only(
            torch.Tensor, lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad),
            value)
        reads = tuple(self.number[one] for one in node.all_input_nodes if one in self.number)
        self.written += [(self.first_of(one), self.number[node]) for one in run.written]
        return Operator(node.name, reads, _size(value), _has_gradient(value), forward_s,
                        backward_s, tuple(self.parameter(one)
                                          for one in self.program.parameters_of(node)),
                        tuple(sorted(saved)), layer_of(node))

    def loss(self, loss: Callable[[Any], torch.Tensor]) -> Operator:
        """Time the loss of the model's outputs."""
        leaves = [self.values[node] for node in self.program.outputs]
        tree = pytree.tree_unflatten(leaves, self.program.output_spec)
        forward_s, backward_s = _times(_Call(loss, (tree,)), self.runs)
        return Operator("loss", tuple(self.number[node] for node in self.program.outputs), 0,
                        True, forward_s, backward_s, layer="loss")

    def parameter(self, parameter: nn.Parameter) -> int:
        """Give a parameter its number."""
        if id(parameter) not in self.parameters:
            self.parameters[id(parameter)] = len(self.parameter_bytes)
            self.parameter_bytes.append(parameter.nbytes)
        return self.parameters[id(parameter)]

    def first_of(self, node: fx.Node) -> int:
        """Find the first operator that has the memory of a value; 0 for a buffer of the model."""
        block = self.values[node].untyped_storage().data_ptr()
        return next((place for place, one in enumerate(self.program.order) if any(
            isinstance(leaf, torch.Tensor) and leaf.untyped_storage().data_ptr() == block
            for leaf in pytree.tree_leaves(self.values.get(one)))), 0)

    def closed(self) -> set[int]:
        """Gaps between a value and what changes it, and where something is live but no tensor."""
        found = {gap for first, last in self.written for gap in range(first + 1, last + 1)}
        for node, place in self.number.items():
            if not isinstance(self.values[node], torch.Tensor):
                last = max((self.number[user] for user in node.users if user in self.number),
                           default=place)
                found |= set(range(place + 1, last + 1))
        return found


class _Call:
    """A function of tensors that can run both ways, on leaves of its own."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...],
                 kwargs: dict[str, Any] | None = None, copies: bool = False) -> None:
        self.function, self.copies = function, copies
        self.given = (args, kwargs or {})
        self.results: list[torch.Tensor] = []
        self.leaves: dict[int, torch.Tensor] = {}

    def forward(self) -> Any:
        """Run it."""
        args, kwargs = pytree.tree_map_only(torch.Tensor, self.leaf, self.given)
        value = self.function(*args, **kwargs)
        self.results = [one for one in pytree.tree_leaves(value)
                        if isinstance(one, torch.Tensor) and one.requires_grad]
        return value

    def backward(self, gradients: list[torch.Tensor]) -> None:
        """Run it back."""
        if self.results:
            torch.autograd.backward(self.results, gradients)

    def leaf(self, tensor: torch.Tensor) -> torch.Tensor:
        """Detach a tensor from its graph. Parameters keep a leaf, where the gradient adds up."""
        if id(tensor) in self.leaves:
            return self.leaves[id(tensor)]
        cut = tensor.detach().requires_grad_(tensor.requires_grad)
        if isinstance(tensor, nn.Parameter):
            self.leaves[id(tensor)] = cut
            return cut
        return cut.clone() if self.copies else cut


class _Run(_Call):
    """An operator of a program."""

    def __init__(self, program: Program, node: fx.Node, values: dict[fx.Node, Any]) -> None:
        schema = getattr(node.target, "_schema", None)
        self.written = [one for one, spec in zip(
            node.args, schema.arguments if schema is not None else (), strict=False)
            if isinstance(one, fx.Node) and spec.alias_info is not None
            and spec.alias_info.is_write]
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        super().__init__(_function(program, node), tuple(args), dict(kwargs), bool(self.written))

    def parameters(self) -> list[nn.Parameter]:
        """Parameters of a module that is an operator."""
        return list(self.function.parameters()) if isinstance(self.function, nn.Module) else []


def _function(program: Program, node: fx.Node) -> Any:
    if node.op == "call_module":
        return copy.deepcopy(program.modules[str(node.target)])
    found: Any = node.target
    return getattr(torch.Tensor, found) if node.op == "call_method" else found


def _form(value: Any) -> Value | None:
    if not isinstance(value, torch.Tensor):
        return None
    return Value(value.shape, value.dtype, value.requires_grad)


def _times(run: _Call, runs: int) -> tuple[float, float]:
    """Give the shortest times of both passes, after one that warms up."""
    forward, backward = [], []
    gradients: list[torch.Tensor] = []
    with torch.enable_grad():
        for _ in range(runs + 1):
            begun = _now()
            run.forward()
            forward.append(_now() - begun)
            gradients = gradients or [torch.ones_like(one) for one in run.results]
            begun = _now()
            run.backward(gradients)
            backward.append(_now() - begun)
    return min(forward[1:]), min(backward[1:])


def _now() -> float:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter()


def _size(value: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in pytree.tree_leaves(value)
               if isinstance(leaf, torch.Tensor))


def _has_gradient(value: Any) -> bool:
    return any(leaf.requires_grad for leaf in pytree.tree_leaves(value)
               if isinstance(leaf, torch.Tensor))
