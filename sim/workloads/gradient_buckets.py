"""Gradient fusion: the tensors of each bucket, and its launch time.

In the backward pass gradients become ready one after the other, and a framework averages them in
*buckets*. Both rules here keep that order, put each tensor in one bucket, and launch no bucket
before its last gradient is ready.

- `horovod_buckets`: at each tick of a cycle, pack the ready gradients up to a threshold
  (`harp.lightcc.fusion`, which the real collectives use, too).
- `ddp_buckets`: sizes alone decide, before training starts; a bucket leaves when it is complete
  (`harp.lightcc.fusion` as well; Li et al., VLDB 2020, section 3.2.3; PyTorch's defaults: 1 MiB
  for the first one, then 25 MiB; Megatron's buckets are larger, `megatron_bucket_bytes`).

One rank is enough, for all ranks run the same backward pass; nothing here grows with the GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from harp.lightcc.fusion import (
    DDP_BYTES,
    DDP_FIRST_BYTES,
    HOROVOD_BYTES,
    HOROVOD_CYCLE_S,
    fill,
    fuse,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


MEGATRON_ELEMENTS, MEGATRON_ELEMENTS_A_RANK = 40_000_000, 1_000_000
"""Elements of Megatron's buckets: the larger of the first, and the second for each data-parallel
rank (Megatron-Core, distributed_data_parallel.py)."""


def megatron_bucket_bytes(ranks: int, element_bytes: int) -> int:
    """Bytes of a bucket between ``ranks`` data-parallel ranks, those of context among them."""
    return element_bytes * max(MEGATRON_ELEMENTS, MEGATRON_ELEMENTS_A_RANK * ranks)


@dataclass(frozen=True)
class Buckets:
    """Buckets in launch order; number i holds tensors ``first[i]`` up to ``first[i + 1] - 1``."""

    first: NDArray[np.int64]
    """Shape (buckets + 1,): where each bucket starts among the tensors; the last entry ends all."""
    nbytes: NDArray[np.int64]
    """Shape (buckets,): bytes of each bucket."""
    launch_s: NDArray[np.float64]
    """Shape (buckets,): when each bucket may leave, in seconds, never falling."""

    def __len__(self) -> int:
        """Count the buckets."""
        return len(self.nbytes)

    @property
    def tensors(self) -> NDArray[np.int64]:
        """Shape (buckets,): how many tensors each bucket holds."""
        return np.diff(self.first)


def horovod_buckets(nbytes: ArrayLike, ready_s: ArrayLike, *, threshold_bytes: int = HOROVOD_BYTES,
                    cycle_s: float = HOROVOD_CYCLE_S) -> Buckets:
    """Fuse as Horovod does.

    ``nbytes`` and ``ready_s`` have shape (tensors,), in the order of the backward pass. Ticks come
    at whole multiples of ``cycle_s``; with ``cycle_s`` 0 a tensor is seen the moment it is ready. A
    tensor larger than ``threshold_bytes`` is sent alone, so a threshold of 0 fuses nothing. Raises
    `ValueError` for empty tensors, times below 0 and shapes that differ.
    """
    sizes, ready = _check(nbytes, ready_s)
    if threshold_bytes < 0 or cycle_s < 0:
        raise ValueError(f"fusion with threshold {threshold_bytes} B and cycle {cycle_s} s is not "
                         "possible; allowed is 0 or more for both.")
    tick = ready if cycle_s == 0 else np.maximum(np.ceil(ready / cycle_s) * cycle_s, ready)
    # Tensors that are ready at one tick are decided upon together.
    ticks = [0, *(np.flatnonzero(np.diff(tick)) + 1).tolist(), len(sizes)]
    starts = [first + start for first, end in pairwise(ticks)
              for start in fuse(sizes[first:end].tolist(), threshold_bytes)]
    return _buckets(starts, sizes, tick)


def ddp_buckets(nbytes: ArrayLike, ready_s: ArrayLike, *, first_bytes: int = DDP_FIRST_BYTES,
                bucket_bytes: int = DDP_BYTES) -> Buckets:
    """Fuse as PyTorch's DistributedDataParallel does.

    Arrays as for `horovod_buckets`. A bucket is closed by the tensor that brings it to its size,
    ``first_bytes`` for the first and ``bucket_bytes`` for all others, so it may exceed that size.
    """
    sizes, ready = _check(nbytes, ready_s)
    if first_bytes <= 0 or bucket_bytes <= 0:
        raise ValueError(f"buckets of {first_bytes} B and {bucket_bytes} B are not possible; "
                         "allowed is more than 0 for both.")
    starts = fill(sizes.tolist(), first_bytes, bucket_bytes)
    return _buckets(starts, sizes, ready)


def _check(nbytes: ArrayLike, ready_s: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Sizes, and the time when all gradients up to each one are ready."""
    sizes, ready = np.asarray(nbytes, np.int64), np.asarray(ready_s, np.float64)
    if sizes.ndim != 1 or sizes.shape != ready.shape:
        raise ValueError(f"sizes of shape {sizes.shape} and ready times of shape {ready.shape} "
                         "do not match; both must be (tensors,).")
    if (sizes <= 0).any() or not (ready >= 0).all():
        raise ValueError("a tensor is empty or ready before 0 s; allowed is a size above 0 and a "
                         "time of 0 or more.")
    # A gradient that is ready early still waits for its turn: all ranks must launch in one order.
    return sizes, np.maximum.accumulate(ready)


def _buckets(starts: list[int], sizes: NDArray[np.int64], ready: NDArray[np.float64]) -> Buckets:
    first = np.array([*starts, len(sizes)], np.int64)
    if not starts:
        return Buckets(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0))
    return Buckets(first, np.add.reduceat(sizes, first[:-1]), ready[first[1:] - 1])
