"""Synchronous collectives on torch's tensors; those not in place are differentiable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harp.lightcc.horovod.torch.arguments import checked
from harp.lightcc.horovod.torch.asynchronous import (
    Average,
    ReduceOp,
    allreduce_async_,
    broadcast_async_,
    chosen,
    grouped_allreduce_async_,
    say,
)
from harp.lightcc.horovod.torch.compression import Compression
from harp.lightcc.horovod.torch.gradients import (
    Allgather,
    Allreduce,
    Alltoall,
    Broadcast,
    GroupedAllgather,
    GroupedAllreduce,
    GroupedReducescatter,
    Reducescatter,
)
from harp.lightcc.horovod.torch.handles import forget_unnamed, named, synchronize
from harp.lightcc.horovod.world import ProcessSet, global_process_set

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch


@checked
def allreduce_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
               op: ReduceOp | None = None, prescale_factor: float = 1.0,
               postscale_factor: float = 1.0,
               process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Reduce a tensor over all ranks in place."""
    return synchronize(allreduce_async_(tensor, average, name, op, prescale_factor,
                                        postscale_factor, process_set))


@checked
def allreduce(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
              compression: Any = Compression.none, op: ReduceOp | None = None,
              prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Reduce a tensor over all ranks."""
    small, context = compression.compress(tensor)
    return compression.decompress(Allreduce.apply(
        small, name, chosen(average, op), prescale_factor, postscale_factor, process_set), context)


@checked
def grouped_allreduce_(tensors: Sequence[torch.Tensor], average: bool | None = None,
                       name: str | None = None, op: ReduceOp | None = None,
                       prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                       process_set: ProcessSet = global_process_set) -> list[torch.Tensor]:
    """Reduce tensors in place, all together or none."""
    return list(synchronize(grouped_allreduce_async_(tensors, average, name, op, prescale_factor,
                                                     postscale_factor, process_set)))


@checked
def grouped_allreduce(tensors: Sequence[torch.Tensor], average: bool | None = None,
                      name: str | None = None, compression: Any = Compression.none,
                      op: ReduceOp | None = None, prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0,
                      process_set: ProcessSet = global_process_set) -> list[torch.Tensor]:
    """Reduce tensors, all together or none."""
    return _compressed(tensors, compression, lambda *small: GroupedAllreduce.apply(
        name, chosen(average, op), prescale_factor, postscale_factor, process_set, *small))


def _compressed(tensors: Sequence[torch.Tensor], compression: Any,
                call: Callable[..., Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    pairs = [compression.compress(tensor) for tensor in tensors]
    results = call(*(small for small, _ in pairs))
    return [compression.decompress(small, context)
            for small, (_, context) in zip(results, pairs, strict=True)]


@checked
def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None,
               process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Give all ranks the root's tensor, in place."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


@checked
def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Give all ranks the root's tensor."""
    return Broadcast.apply(tensor, root_rank, name, process_set)


@checked
def allgather(tensor: torch.Tensor, name: str | None = None,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Put the tensors of all ranks one behind the other; first dimensions may differ."""
    return Allgather.apply(tensor, name, process_set)


@checked
def grouped_allgather(tensors: Sequence[torch.Tensor], name: str | None = None,
                      process_set: ProcessSet = global_process_set) -> list[torch.Tensor]:
    """Gather each of the tensors, all together or none; first dimensions may differ."""
    return list(GroupedAllgather.apply(name, process_set, *tensors))


@checked
def alltoall(tensor: torch.Tensor, splits: Any = None, name: str | None = None,
             process_set: ProcessSet = global_process_set) -> Any:
    """Send rows to each rank and receive rows from each; with ``splits`` also how many came."""
    came, received = Alltoall.apply(tensor, splits, name, process_set)
    return came if splits is None else (came, received)


@checked
def reducescatter(tensor: torch.Tensor, name: str | None = None,
                  compression: Any = Compression.none, op: ReduceOp = Average,
                  process_set: ProcessSet = global_process_set,
                  prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> torch.Tensor:
    """Reduce a tensor, and give each rank its rows; the first ranks have one more if need be."""
    small, context = compression.compress(tensor)
    return compression.decompress(Reducescatter.apply(
        small, name, op, process_set, prescale_factor, postscale_factor), context)


@checked
def grouped_reducescatter(tensors: Sequence[torch.Tensor], name: str | None = None,
                          compression: Any = Compression.none, op: ReduceOp = Average,
                          process_set: ProcessSet = global_process_set,
                          prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0) -> list[torch.Tensor]:
    """Reduce each of the tensors and give each rank its rows, all together or none."""
    return _compressed(tensors, compression, lambda *small: GroupedReducescatter.apply(
        name, op, process_set, prescale_factor, postscale_factor, *small))


@checked
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks have come here."""
    synchronize(say("barrier", named("barrier", None, process_set), process_set))


def join(device: int = -1) -> int:  # noqa: ARG001  (Horovod's)
    """Wait until all ranks have joined, with zeros for what they reduce; gives the last one."""
    last = int(synchronize(say("join", "join", global_process_set)))
    # A rank that joined early has asked for fewer than the others; none is under way now.
    forget_unnamed(global_process_set)
    return last
