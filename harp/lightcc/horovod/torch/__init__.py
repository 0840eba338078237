"""Horovod's API for PyTorch: ``import harp.lightcc.horovod.torch as hvd``.

A script for Horovod runs when its import line names this module. docs/use/horovod.md
says what is there and what is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harp.lightcc.horovod import rejoin
from harp.lightcc.horovod import world as _world
from harp.lightcc.horovod.horovod_errors import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    RequestError,
)
from harp.lightcc.horovod.torch import elastic
from harp.lightcc.horovod.torch.asynchronous import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
    allgather_async,
    allreduce_async,
    allreduce_async_,
    alltoall_async,
    broadcast_async,
    broadcast_async_,
    grouped_allgather_async,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter_async,
    reducescatter_async,
    sparse_allreduce_async,
)
from harp.lightcc.horovod.torch.compression import Compression
from harp.lightcc.horovod.torch.distributed_optimizer import DistributedOptimizer
from harp.lightcc.horovod.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_object_fn,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from harp.lightcc.horovod.torch.handles import (
    forget_unnamed,
    poll,
    synchronize,
)
from harp.lightcc.horovod.torch.ops import (
    allgather,
    allreduce,
    allreduce_,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_reducescatter,
    join,
    reducescatter,
)
from harp.lightcc.horovod.torch.sync_batch_norm import SyncBatchNorm
from harp.lightcc.horovod.world import ProcessSet, global_process_set, is_initialized

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Adasum", "Average", "Compression", "DistributedOptimizer", "HorovodInternalError",
    "HostsUpdatedInterrupt", "Max", "Min", "ProcessSet", "Product", "ReduceOp", "RequestError",
    "Sum", "SyncBatchNorm", "add_process_set", "allgather", "allgather_async", "allgather_object",
    "allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "alltoall", "alltoall_async",
    "barrier", "broadcast", "broadcast_", "broadcast_async", "broadcast_async_", "broadcast_object",
    "broadcast_object_fn", "broadcast_optimizer_state", "broadcast_parameters", "cross_rank",
    "cross_size", "elastic", "global_process_set", "grouped_allgather", "grouped_allgather_async",
    "grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async",
    "grouped_allreduce_async_", "grouped_reducescatter", "grouped_reducescatter_async", "init",
    "is_homogeneous", "is_initialized", "join", "local_rank", "local_size", "poll", "rank",
    "reducescatter", "reducescatter_async", "remove_process_set", "shutdown", "size",
    "sparse_allreduce_async", "start_timeline", "stop_timeline", "synchronize"]


def init(comm: Sequence[int] | None = None,
         process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None) -> None:
    """Meet the other ranks. A second call does nothing.

    Args:
        comm: is refused; the ranks are those that the launcher started.
        process_sets: sets of ranks that are made at once. ``"dynamic"`` names none; more can be
            added later in any case.

    """
    if comm is not None and comm != []:
        raise NotImplementedError("hvd.init(comm): the ranks are all that the launcher started; "
                                  "process_sets=[...] makes sets of them")
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(f"process_sets is {process_sets!r}; allowed are a list of sets and "
                             "'dynamic'")
        process_sets = None
    if not is_initialized():
        forget_unnamed()
        rejoin.start([_set_of(one) for one in process_sets or ()])


def shutdown() -> None:
    """Leave the other ranks."""
    _world.end()


def rank() -> int:
    """Give this rank's number."""
    return _world.current().rank


def size() -> int:
    """Count the ranks."""
    return _world.current().size


def local_rank() -> int:
    """Give this rank's number within its host."""
    return _world.current().local_rank


def local_size() -> int:
    """Count the ranks of this host."""
    return _world.current().local_size


def cross_rank() -> int:
    """Give this host's number among those with a rank of this local number."""
    return _world.current().cross_rank


def cross_size() -> int:
    """Count the hosts that have a rank of this local number."""
    return _world.current().cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have as many ranks."""
    return _world.current().is_homogeneous


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Make a set of ranks. All ranks must call it, those outside, too."""
    added = _set_of(process_set)
    _world.current().add(added)
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """End a set of ranks. All ranks must call it."""
    if process_set.process_set_id in {None, 0}:
        return False
    _world.current().remove(process_set)
    return True


def _set_of(given: ProcessSet | Sequence[int]) -> ProcessSet:
    return given if isinstance(given, ProcessSet) else ProcessSet(given)


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Write a timeline from now on, at rank 0."""
    if rank() == 0:
        _world.current().timeline.start(file_path, mark_cycles=mark_cycles)


def stop_timeline() -> None:
    """End the timeline's file."""
    _world.current().timeline.stop()


# Questions of scripts before they choose a backend. Collectives here are LightCC's alone.

def _no() -> bool:
    return False


mpi_built = mpi_enabled = mpi_threads_supported = gloo_built = gloo_enabled = nccl_built = _no
cuda_built = rocm_built = ddl_built = ccl_built = _no
