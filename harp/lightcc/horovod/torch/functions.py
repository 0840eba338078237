"""Broadcast and allgather of parameters, optimizer states and objects."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from harp.lightcc.horovod.torch.arguments import checked
from harp.lightcc.horovod.torch.asynchronous import allgather_async, broadcast_async_
from harp.lightcc.horovod.torch.handles import synchronize
from harp.lightcc.horovod.torch.ops import allgather, broadcast_
from harp.lightcc.horovod.world import ProcessSet, global_process_set

if TYPE_CHECKING:
    from collections.abc import Iterable


@checked
def broadcast_parameters(params: Any, root_rank: int,
                         process_set: ProcessSet = global_process_set) -> None:
    """Give all ranks the root's parameters: a ``state_dict()``, or pairs of a name and a tensor."""
    pairs: Iterable[tuple[str, Any]]
    if isinstance(params, Mapping):
        pairs = sorted(params.items())
    elif isinstance(params, (list, tuple)) or hasattr(params, "__next__"):
        pairs = [one if isinstance(one, tuple) else (str(at), one)
                 for at, one in enumerate(params)]
    else:
        raise ValueError(f"invalid params of type {type(params).__name__}; allowed are a "
                         "state_dict and pairs of a name and a tensor")
    handles = [broadcast_async_(tensor, root_rank, name, process_set)
               for name, tensor in pairs if isinstance(tensor, torch.Tensor)]
    for handle in handles:
        synchronize(handle)


@checked
def broadcast_object(obj: Any = None, root_rank: int = 0, name: str | None = None,
                     process_set: ProcessSet = global_process_set) -> Any:
    """Give all ranks the root's object, which pickle must be able to store."""
    named = name or "object"
    own = process_set.ranks[process_set.rank()] == root_rank
    data = _pickled(obj) if own else torch.empty(0, dtype=torch.uint8)
    size = broadcast_(torch.tensor([data.numel()]), root_rank, f"{named}.size", process_set)
    if not own:
        data = torch.empty(int(size), dtype=torch.uint8)
    broadcast_(data, root_rank, f"{named}.data", process_set)
    return obj if own else _unpickled(data)


@checked
def broadcast_object_fn(root_rank: int = 0, name: str | None = None,
                        process_set: ProcessSet = global_process_set) -> Any:
    """Give a function that broadcasts the object that it is called with."""
    return lambda obj: broadcast_object(obj, root_rank, name, process_set)


@checked
def allgather_object(obj: Any, name: str | None = None,
                     process_set: ProcessSet = global_process_set) -> list[Any]:
    """Give all ranks the objects of all, in the order of ranks."""
    data = _pickled(obj)
    named = name or "object"
    sizes = allgather(torch.tensor([data.numel()]), f"{named}.sizes", process_set).tolist()
    whole = synchronize(allgather_async(data, f"{named}.data", process_set))
    return [_unpickled(part) for part in whole.split(sizes)]


def _pickled(obj: Any) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(pickle.dumps(obj), np.uint8).copy())


def _unpickled(data: torch.Tensor) -> Any:
    return pickle.load(io.BytesIO(data.numpy().tobytes()))


@checked
def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int,
                              model: torch.nn.Module | None = None) -> None:
    """Give all ranks the root's optimizer state: options by value, tensors in place.

    A rank whose optimizer has made no step has no tensors of its own yet, and gets the root's. Its
    parameters without a gradient get zeros, as in Horovod; sparse ones where the optimizer is
    SparseAdam or where the ``model`` says so.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state: it belongs to one process only")
    state = optimizer.state_dict()
    if not state["state"]:
        _zero_missing_gradients(optimizer, model)
    own = global_process_set.rank() == root_rank
    plan = broadcast_object(_described(state) if own else None, root_rank, "optimizer.state")
    found = state if own else _blank(plan)
    handles = [broadcast_async_(value, root_rank, f"optimizer.{number}.{key}")
               for number, values in found["state"].items() for key, value in values.items()
               if isinstance(value, torch.Tensor)]
    for handle in handles:
        synchronize(handle)
    if not own:
        optimizer.load_state_dict(found)


def _zero_missing_gradients(optimizer: torch.optim.Optimizer,
                            model: torch.nn.Module | None) -> None:
    sparse = {parameter for module in (model.modules() if model else ())
              if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse
              for parameter in module.parameters(recurse=False)}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and parameter.grad is None:
                zeros = torch.zeros_like(parameter)
                is_sparse = parameter in sparse or isinstance(optimizer, torch.optim.SparseAdam)
                parameter.grad = zeros.to_sparse() if is_sparse else zeros


class _Shape:
    """A tensor without its content."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype


def _described(state: dict[str, Any]) -> dict[str, Any]:
    return {"param_groups": state["param_groups"], "state": {
        number: {key: _Shape(value) if isinstance(value, torch.Tensor) else value
                 for key, value in values.items()}
        for number, values in state["state"].items()}}


def _blank(plan: dict[str, Any]) -> dict[str, Any]:
    return {"param_groups": plan["param_groups"], "state": {
        number: {key: torch.zeros(value.shape, dtype=value.dtype)
                 if isinstance(value, _Shape) else value for key, value in values.items()}
        for number, values in plan["state"].items()}}
