"""Differentiable collectives: those that wait and are not in place, as in Horovod."""
# ruff: noqa: D101, D102  (each is the call of its name; torch asks for forward and backward)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from harp.lightcc.horovod.torch.asynchronous import (
    Average,
    ReduceOp,
    Sum,
    allgather_async,
    allreduce_async,
    alltoall_async,
    broadcast_async,
    grouped_allgather_async,
    grouped_allreduce_async,
    grouped_reducescatter_async,
    reducescatter_async,
)
from harp.lightcc.horovod.torch.handles import synchronize
from harp.lightcc.horovod.world import current

if TYPE_CHECKING:
    from harp.lightcc.horovod.world import ProcessSet


class Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, op: ReduceOp, prescale: float,
                postscale: float, process_set: ProcessSet) -> torch.Tensor:
        ctx.call = op, prescale, postscale, process_set
        return synchronize(allreduce_async(tensor, None, name, op, prescale, postscale,
                                           process_set))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        op, prescale, postscale, process_set = ctx.call
        return (synchronize(allreduce_async(gradient, None, None, op, prescale, postscale,
                                            process_set)), *[None] * 5)


class Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root: int, name: str | None,
                process_set: ProcessSet) -> torch.Tensor:
        ctx.call = root, process_set
        return synchronize(broadcast_async(tensor, root, name, process_set))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        root, process_set = ctx.call
        total = synchronize(allreduce_async(gradient, None, None, Average, process_set=process_set))
        own = current().rank == root
        return (total if own else total * 0, *[None] * 3)


class Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None,
                process_set: ProcessSet) -> torch.Tensor:
        ctx.call = tensor.shape, process_set
        return synchronize(allgather_async(tensor, name, process_set))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        shape, process_set = ctx.call
        rows = shape[0] if shape else 1
        of_ranks = synchronize(allgather_async(torch.tensor([rows]), None, process_set)).tolist()
        total = synchronize(allreduce_async(gradient, None, None, Average, process_set=process_set))
        own = process_set.rank()
        return total.split(of_ranks)[own].reshape(shape), None, None


class Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None,
                process_set: ProcessSet) -> Any:
        came, received = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.call = received, process_set
        ctx.mark_non_differentiable(received)
        return came, received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> Any:
        received, process_set = ctx.call
        back, _ = synchronize(alltoall_async(gradient, received, None, process_set))
        return back, None, None, None


class Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, op: ReduceOp,
                process_set: ProcessSet, prescale: float, postscale: float) -> torch.Tensor:
        ctx.call = op, process_set, prescale, postscale
        return synchronize(reducescatter_async(tensor, name, op, process_set, prescale, postscale))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        op, process_set, prescale, postscale = ctx.call
        scale = prescale * postscale * (process_set.size() if op == Sum else 1)
        return (synchronize(allgather_async(gradient * scale, None, process_set)), *[None] * 5)


class GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, op: ReduceOp, prescale: float, postscale: float,
                process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        ctx.call = op, prescale, postscale, process_set
        return synchronize(grouped_allreduce_async(tensors, None, name, *ctx.call))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return (*[None] * 5,
                *synchronize(grouped_allreduce_async(gradients, None, None, *ctx.call)))


class GroupedAllgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet,
                *tensors: torch.Tensor) -> Any:
        ctx.call = [tensor.shape for tensor in tensors], process_set
        return synchronize(grouped_allgather_async(tensors, name, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        shapes, process_set = ctx.call
        rows = torch.tensor([[shape[0] if shape else 1 for shape in shapes]])
        of_ranks = synchronize(allgather_async(rows, None, process_set)).t().tolist()
        totals = synchronize(grouped_allreduce_async(gradients, None, None, Average,
                                                     process_set=process_set))
        own = process_set.rank()
        return None, None, *(total.split(rows)[own].reshape(shape) for total, rows, shape
                             in zip(totals, of_ranks, shapes, strict=True))


class GroupedReducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, op: ReduceOp, process_set: ProcessSet, prescale: float,
                postscale: float, *tensors: torch.Tensor) -> Any:
        ctx.call = op, process_set, prescale, postscale
        return synchronize(grouped_reducescatter_async(tensors, name, *ctx.call))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        op, process_set, prescale, postscale = ctx.call
        scale = prescale * postscale * (process_set.size() if op == Sum else 1)
        return (*[None] * 5, *synchronize(grouped_allgather_async(
            [gradient * scale for gradient in gradients], None, process_set)))
