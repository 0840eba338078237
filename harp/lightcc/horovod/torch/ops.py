"""Collectives on torch's tensors: each as a call that waits, one that does not, and in place.

A call that does not wait gives a handle for `synchronize` and `poll`. The calls that wait and are
not in place can be differentiated, as Horovod's are.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from harp.lightcc.elements import combination
from harp.lightcc.horovod.negotiation import Answer, Request
from harp.lightcc.horovod.runtime import Entry
from harp.lightcc.horovod.torch.compression import Compression
from harp.lightcc.horovod.world import ProcessSet, current, global_process_set
from harp.lightcc.tensors import flat_bytes, writing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from harp.lightcc.horovod.runtime import Runtime


class ReduceOp(NamedTuple):
    """A reduction."""

    name: str
    """As `harp.lightcc.elements` calls it."""


Average, Sum, Min, Max, Product = (ReduceOp(name) for name in
                                   ("avg", "sum", "min", "max", "product"))
Adasum = ReduceOp("adasum")

_handles: dict[int, tuple[Future[Any], Runtime]] = {}
_groups: dict[int, list[int]] = {}
"""Handles of a grouped call by the one that its caller has."""
_numbers = itertools.count()
_unnamed: dict[tuple[str, int | None], itertools.count[int]] = {}


def synchronize(handle: int) -> Any:
    """Wait for a call, and give its result, of a grouped one a tuple. Raises what it failed by."""
    if handle in _groups:
        return tuple([synchronize(one) for one in _groups.pop(handle)])
    if handle not in _handles:
        raise ValueError(f"handle {handle} is not known; each is synchronized once")
    future, runtime = _handles.pop(handle)
    if not future.done():
        runtime.hurry()
    return future.result()


def poll(handle: int) -> bool:
    """Whether a call is over, so that `synchronize` will not wait."""
    if handle in _groups:
        return all(map(poll, _groups[handle]))
    if handle not in _handles:
        raise ValueError(f"handle {handle} is not known; it may have been synchronized")
    return _handles[handle][0].done()


def _join_handles(handles: list[int]) -> int:
    handle = next(_numbers)
    _groups[handle] = handles
    return handle


def _begin(runtime: Runtime, entries: Sequence[Entry]) -> list[int]:
    begun = []
    for entry in entries:
        handle = next(_numbers)
        _handles[handle] = entry.future, runtime
        begun.append(handle)
    runtime.enqueue(entries)
    return begun


def _runtime(process_set: ProcessSet) -> Runtime:
    current()
    process_set.rank()  # says so where this rank is none of the set
    assert process_set.runtime
    return process_set.runtime


def _named(kind: str, name: str | None, process_set: ProcessSet) -> str:
    if name is not None:
        return f"{kind}.{name}"
    key = kind, process_set.process_set_id
    return f"{kind}.noname.{next(_unnamed.setdefault(key, itertools.count()))}"


def forget_unnamed() -> None:
    """Begin to count calls without a name anew, as all ranks of a new world do."""
    _unnamed.clear()


# ---- Memory ----

def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """Give the tensor, or a copy of it that lies as collectives need it: in a row."""
    if tensor.device.type != "cpu":
        raise ValueError(f"a tensor on {tensor.device}: collectives of LightCC take tensors on the "
                         "CPU")
    if tensor.is_sparse:
        raise ValueError("sparse tensors have no collectives here; sparse_as_dense=True of "
                         "DistributedOptimizer makes gradients dense")
    return tensor.detach().contiguous()


def _request(kind: str, name: str, memory: torch.Tensor, detail: str = "", **more: Any) -> Request:
    return Request(kind, name, str(memory.dtype).removeprefix("torch."), tuple(memory.shape),
                   memory.numel() * memory.element_size(), detail, **more)


def _into(target: torch.Tensor, memory: torch.Tensor, scale: float = 1.0,
          ) -> Callable[[Answer], torch.Tensor]:
    """Give what moves a result to where it belongs, if it is not there."""
    def finish(_: Answer) -> torch.Tensor:
        with writing(target):
            if scale != 1.0:
                memory.mul_(scale)
            if memory.data_ptr() != target.data_ptr():
                target.copy_(memory)
        return target
    return finish


# ---- Allreduce ----

def chosen(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    """Give the reduction, of which older scripts speak as ``average``."""
    if average is not None and op is not None:
        raise ValueError("op and average are two words for one thing; give op alone")
    if op is None:
        return Sum if average is False else Average
    if op == Adasum:
        raise NotImplementedError("Adasum is not there; allowed are Average, Sum, Min, Max and "
                                  "Product")
    return op


def _reduce_entry(target: torch.Tensor, source: torch.Tensor, name: str, op: ReduceOp,
                  prescale: float, postscale: float, **more: Any) -> Entry:
    memory = _memory(target)
    with torch.no_grad():
        if target is not source:
            memory.copy_(source.detach())
        if prescale != 1.0:
            memory.mul_(prescale)
    request = _request("allreduce", name, memory, op.name, **more)
    combination(request.dtype, op.name)  # says so where the type has no such reduction
    return Entry(request, flat_bytes(memory), _into(target, memory, postscale))


def allreduce_async_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
                     op: ReduceOp | None = None, prescale_factor: float = 1.0,
                     postscale_factor: float = 1.0,
                     process_set: ProcessSet = global_process_set, *, sparse: bool = False) -> int:
    """Reduce a tensor over all ranks in place; ``sparse`` gradients may go by top-k."""
    entry = _reduce_entry(tensor, tensor, _named("allreduce", name, process_set),
                          chosen(average, op), prescale_factor, postscale_factor, sparse=sparse)
    return _begin(_runtime(process_set), [entry])[0]


def allreduce_async(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
                    op: ReduceOp | None = None, prescale_factor: float = 1.0,
                    postscale_factor: float = 1.0,
                    process_set: ProcessSet = global_process_set) -> int:
    """Reduce a tensor over all ranks into a new one."""
    return _begin_allreduces([tensor], "", [_named("allreduce", name, process_set)],
                             chosen(average, op), prescale_factor, postscale_factor,
                             process_set)[0]


def allreduce_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
               op: ReduceOp | None = None, prescale_factor: float = 1.0,
               postscale_factor: float = 1.0,
               process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Reduce a tensor over all ranks in place."""
    return synchronize(allreduce_async_(tensor, average, name, op, prescale_factor,
                                        postscale_factor, process_set))


def allreduce(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
              compression: Any = Compression.none, op: ReduceOp | None = None,
              prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Reduce a tensor over all ranks."""
    small, context = compression.compress(tensor)
    return compression.decompress(_Allreduce.apply(
        small, name, chosen(average, op), prescale_factor, postscale_factor, process_set), context)


def begin_gradients_(tensors: Sequence[torch.Tensor], average: bool | None = None,
                     name: str | None = None, op: ReduceOp | None = None,
                     prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                     process_set: ProcessSet = global_process_set, *,
                     sparse: bool = True) -> list[int]:
    """Reduce tensors in place, all together or none; each has a handle of its own."""
    group = _named("grouped_allreduce", name, process_set)
    return _begin(_runtime(process_set), [
        _reduce_entry(tensor, tensor, f"{group}.{at}", chosen(average, op), prescale_factor,
                      postscale_factor, group=group, group_size=len(tensors), sparse=sparse)
        for at, tensor in enumerate(tensors)])


def grouped_allreduce_async_(tensors: Sequence[torch.Tensor], *args: Any, **more: Any) -> int:
    """Reduce tensors in place, all together or none, with one handle; as `allreduce_async_`."""
    return _join_handles(begin_gradients_(tensors, *args, sparse=False, **more))


def _begin_allreduces(tensors: Sequence[torch.Tensor], group: str, names: Sequence[str],
                      op: ReduceOp, prescale: float, postscale: float,
                      process_set: ProcessSet) -> list[int]:
    """Reduce tensors into new ones."""
    return _begin(_runtime(process_set), [
        _reduce_entry(torch.empty_like(tensor.detach()), tensor, name, op, prescale, postscale,
                      group=group, group_size=len(tensors))
        for name, tensor in zip(names, tensors, strict=True)])


def grouped_allreduce_async(tensors: Sequence[torch.Tensor], average: bool | None = None,
                            name: str | None = None, op: ReduceOp | None = None,
                            prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                            process_set: ProcessSet = global_process_set) -> int:
    """Reduce tensors into new ones, all together or none, with one handle."""
    group = _named("grouped_allreduce", name, process_set)
    names = [f"{group}.{at}" for at in range(len(tensors))]
    return _join_handles(_begin_allreduces(tensors, group, names, chosen(average, op),
                                           prescale_factor, postscale_factor, process_set))


def grouped_allreduce_(tensors: Sequence[torch.Tensor], *args: Any,
                       **more: Any) -> list[torch.Tensor]:
    """Reduce tensors in place, all together or none."""
    return list(synchronize(grouped_allreduce_async_(tensors, *args, **more)))


def grouped_allreduce(tensors: Sequence[torch.Tensor], average: bool | None = None,
                      name: str | None = None, compression: Any = Compression.none,
                      op: ReduceOp | None = None, prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0,
                      process_set: ProcessSet = global_process_set) -> list[torch.Tensor]:
    """Reduce tensors, all together or none."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    handle = grouped_allreduce_async([small for small, _ in pairs], average, name, op,
                                     prescale_factor, postscale_factor, process_set)
    return [compression.decompress(small, context)
            for small, (_, context) in zip(synchronize(handle), pairs, strict=True)]


# ---- Broadcast ----

def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None,
                     process_set: ProcessSet = global_process_set) -> int:
    """Give all ranks the root's tensor, in place."""
    return _broadcast(tensor, tensor, root_rank, name, process_set)


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None,
                    process_set: ProcessSet = global_process_set) -> int:
    """Give all ranks the root's tensor, as a new one."""
    return _broadcast(torch.empty_like(tensor.detach()), tensor, root_rank, name, process_set)


def _broadcast(target: torch.Tensor, source: torch.Tensor, root_rank: int, name: str | None,
               process_set: ProcessSet) -> int:
    if root_rank not in process_set.ranks:
        raise ValueError(f"root_rank {root_rank} is none of the ranks {process_set.ranks}")
    memory = _memory(target)
    if target is not source:
        memory.copy_(source.detach())
    request = _request("broadcast", _named("broadcast", name, process_set), memory,
                       f"root {process_set.ranks.index(root_rank)}")
    return _begin(_runtime(process_set),
                  [Entry(request, flat_bytes(memory), _into(target, memory))])[0]


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None,
               process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Give all ranks the root's tensor, in place."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Give all ranks the root's tensor."""
    return _Broadcast.apply(tensor, root_rank, name, process_set)


# ---- Parts ----

def allgather_async(tensor: torch.Tensor, name: str | None = None,
                    process_set: ProcessSet = global_process_set) -> int:
    """Put the tensors of all ranks one behind the other; first dimensions may differ."""
    memory = _memory(tensor)
    if not memory.dim():
        memory = memory.reshape(1)
    request = _request("allgather", _named("allgather", name, process_set), memory)
    made: list[torch.Tensor] = []
    return _begin(_runtime(process_set), [Entry(
        request, flat_bytes(memory), lambda _: made[0], _maker(memory, made))])[0]


def _maker(memory: torch.Tensor, made: list[torch.Tensor],
           ) -> Callable[[int], np.ndarray[Any, np.dtype[np.uint8]]]:
    def make(rows: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        made.append(memory.new_empty((rows, *memory.shape[1:])))
        return flat_bytes(made[0])
    return make


def allgather(tensor: torch.Tensor, name: str | None = None,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Put the tensors of all ranks one behind the other; first dimensions may differ."""
    return _Allgather.apply(tensor, name, process_set)


def alltoall_async(tensor: torch.Tensor, splits: Any = None, name: str | None = None,
                   process_set: ProcessSet = global_process_set) -> int:
    """Send rows to each rank and receive rows from each; ``splits`` says how many to each."""
    memory = _memory(tensor)
    ranks = process_set.size()
    rows = memory.shape[0] if memory.dim() else 0
    if splits is None and (not memory.dim() or rows % ranks):
        raise ValueError(f"alltoall of {rows} rows over {ranks} ranks needs splits")
    wanted = [rows // ranks] * ranks if splits is None else [int(split) for split in splits]
    if len(wanted) != ranks or sum(wanted) != rows or min(wanted) < 0:
        raise ValueError(f"alltoall: splits are {wanted}; they are to be {ranks} numbers with the "
                         f"sum {rows}")
    request = replace(_request("alltoall", _named("alltoall", name, process_set), memory),
                      splits=tuple(wanted))
    made: list[torch.Tensor] = []
    own = process_set.rank()

    def finish(answer: Answer) -> Any:
        came = made[0]
        received = torch.tensor([given[own] for given in answer.rows], dtype=torch.int32)
        return came if splits is None else (came, received)
    return _begin(_runtime(process_set),
                  [Entry(request, flat_bytes(memory), finish, _maker(memory, made))])[0]


def alltoall(tensor: torch.Tensor, splits: Any = None, name: str | None = None,
             process_set: ProcessSet = global_process_set) -> Any:
    """Send rows to each rank and receive rows from each; with ``splits`` also how many came."""
    if splits is None:
        return _Alltoall.apply(tensor, None, name, process_set)[0]
    return _Alltoall.apply(tensor, splits, name, process_set)


def reducescatter_async(tensor: torch.Tensor, name: str | None = None, op: ReduceOp = Average,
                        process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                        postscale_factor: float = 1.0) -> int:
    """Reduce a tensor, and give each rank its rows; the first ranks have one more if need be."""
    if not tensor.dim():
        raise ValueError("reducescatter of a number; it needs a tensor with rows")
    memory = _memory(tensor).clone()
    with torch.no_grad():
        if prescale_factor != 1.0:
            memory.mul_(prescale_factor)
    request = _request("reducescatter", _named("reducescatter", name, process_set), memory,
                       chosen(None, op).name)
    combination(request.dtype, request.detail)
    rows, more = divmod(memory.shape[0], process_set.size())
    own = process_set.rank()
    first = own * rows + min(own, more)

    def finish(_: Answer) -> torch.Tensor:
        mine = memory[first:first + rows + (own < more)].clone()
        return mine.mul_(postscale_factor) if postscale_factor != 1.0 else mine
    return _begin(_runtime(process_set), [Entry(request, flat_bytes(memory), finish)])[0]


def reducescatter(tensor: torch.Tensor, name: str | None = None,
                  compression: Any = Compression.none, op: ReduceOp = Average,
                  process_set: ProcessSet = global_process_set,
                  prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> torch.Tensor:
    """Reduce a tensor, and give each rank its rows; the first ranks have one more if need be."""
    small, context = compression.compress(tensor)
    return compression.decompress(_Reducescatter.apply(
        small, name, op, process_set, prescale_factor, postscale_factor), context)


# ---- All ranks ----

def _word(kind: str, name: str, process_set: ProcessSet) -> int:
    entry = Entry(Request(kind, name), np.empty(0, np.uint8), lambda answer: answer.last)
    return _begin(_runtime(process_set), [entry])[0]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks have come here."""
    synchronize(_word("barrier", _named("barrier", None, process_set), process_set))


def join(device: int = -1) -> int:  # noqa: ARG001  (Horovod's)
    """Wait until all ranks have joined, with zeros for what they reduce; gives the last one."""
    return int(synchronize(_word("join", "join", global_process_set)))


# ---- Gradients of collectives ----

class _Allreduce(torch.autograd.Function):
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


class _Broadcast(torch.autograd.Function):
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


class _Allgather(torch.autograd.Function):
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


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None,
                process_set: ProcessSet) -> Any:
        ranks = process_set.size()
        if splits is None and tensor.dim() and tensor.shape[0] % ranks == 0:
            splits = [tensor.shape[0] // ranks] * ranks
        came, received = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.call = received, process_set
        ctx.mark_non_differentiable(received)
        return came, received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> Any:
        received, process_set = ctx.call
        back, _ = synchronize(alltoall_async(gradient, received, None, process_set))
        return back, None, None, None


class _Reducescatter(torch.autograd.Function):
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
