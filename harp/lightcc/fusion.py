"""Tensor fusion: the rules for which gradients are sent together, without time.

The simulator (`sim.workloads.gradient_buckets`) and Horovod's negotiation (`harp.lightcc.horovod`)
ask the same function, so what is simulated is what is deployed. DDP's buckets are torch's own work;
the same rule is here for the simulator and for ``harp env --explain``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

HOROVOD_BYTES = 128 << 20
"""Horovod's default HOROVOD_FUSION_THRESHOLD since 0.21."""
HOROVOD_CYCLE_S = 1e-3
"""Horovod's default HOROVOD_CYCLE_TIME since 0.21."""
DDP_FIRST_BYTES = 1 << 20
"""PyTorch's first bucket (Li et al., VLDB 2020, section 3.2.3)."""
DDP_BYTES = 25 << 20
"""PyTorch's default bucket_cap_mb."""


def fuse(nbytes: Iterable[int], threshold_bytes: int) -> list[int]:
    """Give the first tensor of each bucket, for tensors that are ready at the same time.

    Order is kept. A tensor larger than the threshold is sent alone, so 0 fuses nothing (Sergeev and
    Del Balso 2018, section "Tensor Fusion").

    >>> fuse([3, 3, 3, 20, 1], 6)
    [0, 2, 3, 4]
    """
    starts: list[int] = []
    room = -1
    for index, size in enumerate(nbytes):
        if not starts or size > room:
            starts.append(index)
            room = threshold_bytes
        room -= size
    return starts


def fill(nbytes: Iterable[int], first_bytes: int, bucket_bytes: int) -> list[int]:
    """Give the first tensor of each of DDP's buckets, for tensors in the backward pass's order.

    A bucket is closed by the tensor that brings it to its size, so it may exceed that.

    >>> fill([4 << 20, 10 << 20, 10 << 20, 8 << 20, 1 << 10], DDP_FIRST_BYTES, DDP_BYTES)
    [0, 1, 4]
    """
    starts: list[int] = []
    room = 0
    for index, size in enumerate(nbytes):
        if room <= 0:
            room = bucket_bytes if starts else first_bytes
            starts.append(index)
        room -= size
    return starts
