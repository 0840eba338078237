"""Asynchronous collectives on torch's tensors: each returns a handle for `synchronize`.

A grouped call begins at all ranks when each of its tensors is there at all of them, and fails
whole; its tensors may have different types.

Tensors on an accelerator are copied to the host when a call is made, which waits for the kernels
that make them, and results back before it is over, on a stream that is not the caller's.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from harp.lightcc.elements import combination
from harp.lightcc.horovod.negotiation import Request, Response
from harp.lightcc.horovod.runtime import Entry
from harp.lightcc.horovod.torch.arguments import checked
from harp.lightcc.horovod.torch.handles import begin, join_handles, named, runtime_of, synchronize
from harp.lightcc.horovod.world import ProcessSet, global_process_set
from harp.lightcc.torch_base.accelerator import Accelerator
from harp.lightcc.torch_base.tensors import flat_bytes, writing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class ReduceOp(NamedTuple):
    """A reduction."""

    name: str
    """As `harp.lightcc.elements` calls it."""


Average, Sum, Min, Max, Product = (ReduceOp(name) for name in
                                   ("avg", "sum", "min", "max", "product"))
Adasum = ReduceOp("adasum")

# ---- Memory ----

@functools.cache
def _accelerator() -> Accelerator:
    return Accelerator()


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """Give the tensor, or a copy of it that lies as collectives need it: in a row on the host."""
    if tensor.is_sparse:
        raise ValueError("sparse tensors have no collectives here; sparse_as_dense=True of "
                         "DistributedOptimizer makes gradients dense")
    if tensor.is_cpu:
        return tensor.detach().resolve_conj().resolve_neg().contiguous()
    if not _accelerator().holds(tensor):
        raise ValueError(f"a tensor on {tensor.device}: collectives of LightCC take tensors on the "
                         "CPU and on torch's accelerator")
    return _accelerator().to_host(tensor.detach())


def _memory_of(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return memory with a copy of the source: the target's own memory where possible."""
    if target is source or not source.is_cpu:
        return _memory(source)
    memory = _memory(target)
    memory.copy_(source.detach())
    return memory


def _beside(made: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Give a result where the given tensor is."""
    if given.is_cpu:
        return made
    result = torch.empty_like(made, device=given.device)
    _accelerator().write(result, made)
    return result


def _request(kind: str, name: str, memory: torch.Tensor, detail: str = "", **more: Any) -> Request:
    return Request(kind, name, str(memory.dtype).removeprefix("torch."), tuple(memory.shape),
                   memory.numel() * memory.element_size(), detail, **more)


def _into(target: torch.Tensor, memory: torch.Tensor,
          change: Callable[[torch.Tensor], None] = lambda _: None,
          ) -> Callable[[Response], torch.Tensor]:
    """Give what moves a result to where it belongs, if it is not there, after a last change."""
    def finish(_: Response) -> torch.Tensor:
        with writing(target):
            change(memory)
            if not target.is_cpu:
                _accelerator().write(target, memory)
            elif memory.data_ptr() != target.data_ptr():
                target.copy_(memory)
        return target
    return finish


# ---- Allreduce ----

def chosen(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    """Return the reduction, which older scripts give as ``average``."""
    if average is not None and op is not None:
        raise ValueError("op and average say the same; give only op")
    if op is None:
        return Sum if average is False else Average
    if not isinstance(op, ReduceOp):
        raise ValueError(f"op is {op!r}; allowed are hvd.Average, hvd.Sum, hvd.Min, hvd.Max and "
                         "hvd.Product")
    if op == Adasum:
        raise NotImplementedError("Adasum is not supported; allowed are Average, Sum, Min, Max and "
                                  "Product")
    return op


@dataclass(frozen=True)
class _Reduction:
    """Operation on the elements of all ranks."""

    op: ReduceOp
    before: float
    """Factor for each rank's elements, and below, for the result."""
    after: float
    ranks: int

    def prepare(self, memory: torch.Tensor) -> _Reduction:
        """Multiply; give what is left to do with this type. Raises ValueError if it has none."""
        whole = not (memory.is_floating_point() or memory.is_complex()
                     or memory.dtype == torch.bool)
        averages = whole and self.op == Average
        reduction = replace(self, op=Sum if averages else self.op,
                            ranks=self.ranks if averages else 1)
        # Says so where the type has no such reduction.
        combination(str(memory.dtype).removeprefix("torch."), reduction.op.name)
        _scale(memory, self.before)
        return reduction

    def finish(self, memory: torch.Tensor) -> None:
        """Multiply the result."""
        _scale(memory, self.after, self.ranks)


def _scale(memory: torch.Tensor, factor: float, parts: int = 1) -> None:
    """Multiply and divide in place; of whole numbers fractions are cut off, as Horovod does."""
    with torch.no_grad():
        if memory.is_floating_point() or memory.is_complex():
            if factor != 1.0:
                memory.mul_(factor)
        elif factor != 1.0 or parts != 1:
            memory.copy_(memory.double().mul_(factor).div_(parts))


def _reduction(average: bool | None, op: ReduceOp | None, before: float, after: float,
               process_set: ProcessSet) -> _Reduction:
    return _Reduction(chosen(average, op), before, after, process_set.size())


def _begin_group(kind: str, name: str | None, process_set: ProcessSet,
                 tensors: Sequence[torch.Tensor], entry: Callable[..., Entry]) -> list[int]:
    """Begin one call for each tensor, which go together."""
    runtime = runtime_of(process_set)
    group = named(f"grouped_{kind}", name, process_set)
    return begin(runtime, [entry(tensor, f"{group}.{at}", group=group, group_size=len(tensors))
                           for at, tensor in enumerate(tensors)])


def _reduce_entry(tensor: torch.Tensor, name: str, reduction: _Reduction,
                  target: torch.Tensor | None = None, **more: Any) -> Entry:
    """Prepare a reduction into the ``target``, or a new tensor."""
    if target is None:
        target = torch.empty_like(tensor.detach())
    memory = _memory_of(tensor, target)
    left = reduction.prepare(memory)
    request = _request("allreduce", name, memory, left.op.name, **more)
    return Entry(request, flat_bytes(memory), _into(target, memory, left.finish))


@checked
def allreduce_async_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
                     op: ReduceOp | None = None, prescale_factor: float = 1.0,
                     postscale_factor: float = 1.0,
                     process_set: ProcessSet = global_process_set, *, sparse: bool = False) -> int:
    """Reduce a tensor over all ranks in place; ``sparse`` gradients may go by top-k."""
    runtime = runtime_of(process_set)
    reduction = _reduction(average, op, prescale_factor, postscale_factor, process_set)
    return begin(runtime, [_reduce_entry(tensor, named("allreduce", name, process_set), reduction,
                                         tensor, sparse=sparse)])[0]


@checked
def allreduce_async(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
                    op: ReduceOp | None = None, prescale_factor: float = 1.0,
                    postscale_factor: float = 1.0,
                    process_set: ProcessSet = global_process_set) -> int:
    """Reduce a tensor over all ranks into a new one."""
    runtime = runtime_of(process_set)
    reduction = _reduction(average, op, prescale_factor, postscale_factor, process_set)
    return begin(runtime, [_reduce_entry(tensor, named("allreduce", name, process_set),
                                         reduction)])[0]


def begin_gradients_(tensors: Sequence[torch.Tensor], average: bool | None = None,
                     name: str | None = None, op: ReduceOp | None = None,
                     prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                     process_set: ProcessSet = global_process_set, *,
                     sparse: bool = True) -> list[int]:
    """Reduce tensors in place, all together or none; each has a handle of its own."""
    runtime_of(process_set)
    reduction = _reduction(average, op, prescale_factor, postscale_factor, process_set)
    return _begin_group("allreduce", name, process_set, tensors, lambda tensor, name, **group:
                        _reduce_entry(tensor, name, reduction, tensor, sparse=sparse, **group))


@checked
def grouped_allreduce_async_(tensors: Sequence[torch.Tensor], average: bool | None = None,
                             name: str | None = None, op: ReduceOp | None = None,
                             prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                             process_set: ProcessSet = global_process_set) -> int:
    """Reduce tensors in place, all together or none, with one handle."""
    return join_handles(begin_gradients_(tensors, average, name, op, prescale_factor,
                                         postscale_factor, process_set, sparse=False))


@checked
def grouped_allreduce_async(tensors: Sequence[torch.Tensor], average: bool | None = None,
                            name: str | None = None, op: ReduceOp | None = None,
                            prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                            process_set: ProcessSet = global_process_set) -> int:
    """Reduce tensors into new ones, all together or none, with one handle."""
    runtime_of(process_set)
    reduction = _reduction(average, op, prescale_factor, postscale_factor, process_set)
    return join_handles(_begin_group(
        "allreduce", name, process_set, tensors,
        lambda tensor, name, **group: _reduce_entry(tensor, name, reduction, **group)))


@checked
def sparse_allreduce_async(tensor: torch.Tensor, name: str, op: ReduceOp,
                           process_set: ProcessSet = global_process_set,
                           ) -> Callable[[], torch.Tensor]:
    """Put the elements of all ranks' sparse tensors together; gives a function that waits."""
    indices = allgather_async(tensor._indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(tensor._values(), f"{name}.values", process_set)

    def wait() -> torch.Tensor:
        every, where = synchronize(values), synchronize(indices)
        return torch.sparse_coo_tensor(
            where.t(), every / process_set.size() if op == Average else every, tensor.shape)
    return wait


# ---- Broadcast ----

@checked
def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None,
                     process_set: ProcessSet = global_process_set) -> int:
    """Give all ranks the root's tensor, in place."""
    return _broadcast(tensor, tensor, root_rank, name, process_set)


@checked
def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None,
                    process_set: ProcessSet = global_process_set) -> int:
    """Give all ranks the root's tensor, as a new one."""
    return _broadcast(torch.empty_like(tensor.detach()), tensor, root_rank, name, process_set)


def _broadcast(target: torch.Tensor, source: torch.Tensor, root_rank: int, name: str | None,
               process_set: ProcessSet) -> int:
    if root_rank not in process_set.ranks:
        raise ValueError(f"root_rank {root_rank} is not one of the ranks {process_set.ranks}")
    memory = _memory_of(source, target)
    request = _request("broadcast", named("broadcast", name, process_set), memory,
                       f"root {process_set.ranks.index(root_rank)}")
    return begin(runtime_of(process_set),
                 [Entry(request, flat_bytes(memory), _into(target, memory))])[0]


# ---- Parts ----

def _gather_entry(tensor: torch.Tensor, name: str, **group: Any) -> Entry:
    memory = _memory(tensor)
    if not memory.dim():
        memory = memory.reshape(1)
    made: list[torch.Tensor] = []
    return Entry(_request("allgather", name, memory, **group), flat_bytes(memory),
                 lambda _: _beside(made[0], tensor), _maker(memory, made))


@checked
def allgather_async(tensor: torch.Tensor, name: str | None = None,
                    process_set: ProcessSet = global_process_set) -> int:
    """Put the tensors of all ranks one behind the other; first dimensions may differ."""
    return begin(runtime_of(process_set),
                 [_gather_entry(tensor, named("allgather", name, process_set))])[0]


@checked
def grouped_allgather_async(tensors: Sequence[torch.Tensor], name: str | None = None,
                            process_set: ProcessSet = global_process_set) -> int:
    """Gather each of the tensors, all together or none, with one handle."""
    return join_handles(_begin_group("allgather", name, process_set, tensors, _gather_entry))


def _maker(memory: torch.Tensor, made: list[torch.Tensor],
           ) -> Callable[[int], np.ndarray[Any, np.dtype[np.uint8]]]:
    def make(rows: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        made.append(memory.new_empty((rows, *memory.shape[1:])))
        return flat_bytes(made[0])
    return make


@checked
def alltoall_async(tensor: torch.Tensor, splits: Any = None, name: str | None = None,
                   process_set: ProcessSet = global_process_set) -> int:
    """Send rows to each rank, and receive rows and their numbers from each.

    ``splits`` says how many go to each.
    """
    runtime = runtime_of(process_set)
    memory = _memory(tensor)
    ranks = process_set.size()
    rows = memory.shape[0] if memory.dim() else 0
    if splits is None and (not memory.dim() or rows % ranks):
        raise ValueError(f"alltoall of {rows} rows over {ranks} ranks needs splits")
    wanted = [rows // ranks] * ranks if splits is None else [int(split) for split in splits]
    if len(wanted) != ranks or sum(wanted) != rows or min(wanted) < 0:
        raise ValueError(f"alltoall: splits are {wanted}; they must be {ranks} numbers with the "
                         f"sum {rows}")
    request = replace(_request("alltoall", named("alltoall", name, process_set), memory),
                      splits=tuple(wanted))
    made: list[torch.Tensor] = []
    own = process_set.rank()

    def finish(response: Response) -> Any:
        counts = torch.tensor([given[own] for given in response.rows], dtype=torch.int32)
        return _beside(made[0], tensor), counts
    return begin(runtime, [Entry(request, flat_bytes(memory), finish, _maker(memory, made))])[0]


def _scatter_entry(tensor: torch.Tensor, name: str, reduction: _Reduction,
                   process_set: ProcessSet, **group: Any) -> Entry:
    if not tensor.dim():
        raise ValueError("reducescatter of a number; it needs a tensor with rows")
    memory = _memory(tensor).clone()
    left = reduction.prepare(memory)
    rows, more = divmod(memory.shape[0], process_set.size())
    own = process_set.rank()
    first = own * rows + min(own, more)

    def finish(_: Response) -> torch.Tensor:
        mine = memory[first:first + rows + (own < more)].clone()
        left.finish(mine)
        return _beside(mine, tensor)
    return Entry(_request("reducescatter", name, memory, left.op.name, **group),
                 flat_bytes(memory), finish)


@checked
def reducescatter_async(tensor: torch.Tensor, name: str | None = None, op: ReduceOp = Average,
                        process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                        postscale_factor: float = 1.0) -> int:
    """Reduce a tensor, and give each rank its rows; the first ranks have one more if need be."""
    runtime = runtime_of(process_set)
    reduction = _reduction(None, op, prescale_factor, postscale_factor, process_set)
    return begin(runtime, [_scatter_entry(tensor, named("reducescatter", name, process_set),
                                          reduction, process_set)])[0]


@checked
def grouped_reducescatter_async(tensors: Sequence[torch.Tensor], name: str | None = None,
                                op: ReduceOp = Average,
                                process_set: ProcessSet = global_process_set,
                                prescale_factor: float = 1.0,
                                postscale_factor: float = 1.0) -> int:
    """Reduce each of the tensors and give each rank its rows, all together, with one handle."""
    runtime_of(process_set)
    reduction = _reduction(None, op, prescale_factor, postscale_factor, process_set)
    return join_handles(_begin_group(
        "reducescatter", name, process_set, tensors,
        lambda tensor, name, **group: _scatter_entry(tensor, name, reduction, process_set,
                                                     **group)))


# ---- All ranks ----

def say(kind: str, name: str, process_set: ProcessSet) -> int:
    """Send all ranks a word, ``barrier`` or ``join``; it is over when all have sent it."""
    entry = Entry(Request(kind, name), np.empty(0, np.uint8), lambda response: response.last)
    return begin(runtime_of(process_set), [entry])[0]
