"""A model as a graph of operators: by `torch.export`, or module by module.

`torch.export` gives a graph of ATen operators, without Python. It cannot follow control flow that
depends on the values of tensors. Such a model can be cut between modules: the modules that its
own ``forward`` calls are then the operators, and what happens inside of them is theirs.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from harp.angelptm.stages.cuts import CutError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True)
class Program:
    """A graph in a form that both kinds share."""

    inputs: tuple[fx.Node, ...]
    operators: tuple[fx.Node, ...]
    """Without the inputs, in the order in which they run."""
    attributes: Mapping[fx.Node, tuple[str, Any]]
    """Parameters, buffers, constants and inner graphs, with the names that the model has."""
    modules: Mapping[str, nn.Module]
    """Modules that are operators, by target."""
    outputs: tuple[fx.Node, ...]
    output_spec: pytree.TreeSpec

    @property
    def order(self) -> tuple[fx.Node, ...]:
        """Inputs and operators: the numbers of values are positions here."""
        return self.inputs + self.operators

    def parameters_of(self, node: fx.Node) -> list[nn.Parameter]:
        """Parameters that an operator reads itself."""
        found = [self.attributes[one][1] for one in node.all_input_nodes
                 if one in self.attributes]
        if node.op == "call_module":
            found += self.modules[str(node.target)].parameters()
        return [one for one in found if isinstance(one, nn.Parameter)]


def exported(model: nn.Module, example: Sequence[Any], kwargs: Mapping[str, Any]) -> Program:
    """Export a model. Raises CutError where torch cannot."""
    try:
        made = torch.export.export(model, tuple(example), dict(kwargs), strict=False)
    except Exception as error:  # torch raises a dozen kinds, some of them private
        raise CutError(
            f"torch.export cannot follow {_place(error, model)}; cut such a model between its "
            'modules: pipeline(..., between="modules")') from error
    names = _first_names(model)
    targets = {spec.arg.name: str(spec.target) for spec in made.graph_signature.input_specs
               if spec.kind.name != "USER_INPUT"}
    attributes: dict[fx.Node, tuple[str, Any]] = {}
    inputs = []
    for node in made.graph.nodes:
        if node.op == "placeholder" and node.name in targets:
            target = targets[node.name]
            own = _attribute(model, target)
            tensor = own if own is not None else made.constants[target]
            attributes[node] = (names.get(id(tensor), target), tensor)
        elif node.op == "placeholder":
            inputs.append(node)
        elif node.op == "get_attr":  # a graph inside, as under torch.no_grad
            attributes[node] = (f"graph {node.target}".replace(".", " "),
                                getattr(made.graph_module, str(node.target)))
    return _program(made.graph, inputs, attributes, {}, made.call_spec.out_spec)


def by_modules(model: nn.Module, example: Sequence[Any], kwargs: Mapping[str, Any]) -> Program:
    """Take the modules that the model's own forward pass calls. Raises CutError."""
    if kwargs:
        raise CutError("between modules, the example's arguments are positional: keywords are "
                       f"given, {', '.join(kwargs)}")
    tracer = _Outermost()
    try:
        graph = tracer.trace(model)
    except Exception as error:  # whatever the model's own code raises on a stand-in
        raise CutError(f"torch.fx cannot follow {_place(error, model)}") from error
    names = _first_names(model)
    attributes: dict[fx.Node, tuple[str, Any]] = {}
    inputs = []
    for node in graph.nodes:
        if node.op == "get_attr":
            found = _attribute(model, str(node.target))
            assert found is not None
            attributes[node] = (names.get(id(found), str(node.target)), found)
        elif node.op == "placeholder":
            inputs.append(node)
    for node in inputs[len(example):]:
        if node.users:
            raise CutError(f"the example has no value for the argument {node.target!r}")
    modules = {str(node.target): model.get_submodule(str(node.target))
               for node in graph.nodes if node.op == "call_module"}
    (output,) = next(node for node in graph.nodes if node.op == "output").args
    _, spec = pytree.tree_flatten(output)
    return _program(graph, inputs[:len(example)], attributes, modules, spec)


class _Outermost(fx.Tracer):
    """Every module that is called is an operator, but for those that only hold others."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        del module_qualified_name
        return not isinstance(m, nn.Sequential)


def _program(graph: fx.Graph, inputs: Sequence[fx.Node],
             attributes: dict[fx.Node, tuple[str, Any]], modules: dict[str, nn.Module],
             spec: pytree.TreeSpec) -> Program:
    (result,) = next(node for node in graph.nodes if node.op == "output").args
    outputs = pytree.tree_leaves(result)
    operators = [node for node in graph.nodes
                 if node.op.startswith("call_") and (node.users or node.is_impure())]
    for output in outputs:
        if not isinstance(output, fx.Node) or output in attributes:
            raise CutError("the model gives something that is no result of an operator: "
                           f"{output}")
    return Program(tuple(inputs), tuple(operators), attributes, modules, tuple(outputs), spec)


def _first_names(model: nn.Module) -> dict[int, str]:
    """Name tied tensors by the first of their names."""
    found: dict[int, str] = {}
    for name, tensor in (*model.named_parameters(remove_duplicate=False),
                         *model.named_buffers(remove_duplicate=False)):
        found.setdefault(id(tensor), name)
    return found


def _attribute(model: nn.Module, target: str) -> torch.Tensor | None:
    found: Any = model
    for part in target.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, torch.Tensor) else None


def _place(error: BaseException, model: nn.Module) -> str:
    """Say at which line of the model's own code torch stopped."""
    chain: list[BaseException] = [error]
    while following := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(following)
    for one in reversed(chain):
        frames = [frame for frame in traceback.extract_tb(one.__traceback__)
                  if not frame.filename.startswith((TORCH, "<"))
                  and Path(frame.filename) != Path(__file__)]
        inside = [frame for frame in frames if frame.name not in {"pipeline", "exported"}]
        if inside and inside[-1].line:
            last = inside[-1]
            return (f"{type(model).__name__} at {last.filename}, line {last.lineno}, "
                    f"`{last.line}`")
    reason = str(error).strip().partition("\n")[0]
    return f"{type(model).__name__} ({type(error).__name__}: {reason})"


def layer_of(node: fx.Node) -> str:
    """Name the layer that an operator is in: the outermost module of a list, or its own module."""
    if node.op == "call_module":
        path = str(node.target)
    else:
        stack = node.meta.get("nn_module_stack") or {}
        path = [str(where) for where, _ in stack.values()][-1] if stack else ""
    parts = path.split(".")
    for number, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[:number + 1])
    return path
