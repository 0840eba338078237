"""DDP's communication hook that averages gradients in 8, 4 or 2 bits a value.

    model = DistributedDataParallel(net)                   # over the backend lightcc
    model.register_comm_hook(BitsState(bits=8), average_in_few_bits)

`harp.lightcc.few_bits` says how. With LIGHT_2D_ALLREDUCE=1 the LIGHT_INTRA_SIZE ranks of a host add
up in float32 first, and few bits are sent between hosts alone. Rounding errors are added to the
next step's gradients, so a `BitsState` is memory as large as a rank's share of them. The first
step's average is dense, since DDP makes its buckets anew after it; so is that of gradients that are
not float32 on the CPU. LIGHT_BITS with `harp.lightcc.hook` is the same as a setting.
"""

# DDP looks at the annotations of a hook, which must not be text: no annotations from __future__.
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from harp.lightcc.few_bits import BITS, FewBits
from harp.lightcc.torch.backend import LightGroup
from harp.lightcc.torch.work import LightWork
from harp.lightcc.torch_base.tensors import flat_bytes


class BitsState:
    """A rank's memory of what was lost.

    Args:
        bits: of a value: 8, 4 or 2.
        group: over which gradients are averaged; the default group if not given.
        seed: of rounding by chance; 0: values are rounded to nearest.

    """

    def __init__(self, bits: int = 8, group: dist.ProcessGroup | None = None,
                 seed: int = 0) -> None:
        if bits not in BITS:
            raise ValueError(f"bits is {bits}; allowed are {', '.join(map(str, BITS))}")
        self.bits, self.seed = bits, seed
        found = dist.group.WORLD if group is None else group
        if not isinstance(found, LightGroup):
            raise ValueError("BitsState needs a group of the backend lightcc, made before it")
        settings = found.callbacks.program_group.settings
        if settings.two_d and found.size() % settings.intra_size:
            raise ValueError(f"LIGHT_INTRA_SIZE is {settings.intra_size}; few bits with "
                             f"LIGHT_2D_ALLREDUCE need a divisor of the {found.size()} ranks")
        self.group = found
        self._is_first = True
        self._kept: dict[Any, tuple[FewBits, Any]] = {}

    def kept(self, bucket: dist.GradBucket) -> tuple[FewBits, Any] | None:
        """Give the call and the error of a bucket; nothing of one that is averaged densely."""
        gradients = bucket.buffer()
        if self._is_first or gradients.dtype != torch.float32 or not gradients.is_cpu:
            return None
        layout = bucket.index(), tuple(tensor.numel() for tensor in bucket.parameters())
        if layout not in self._kept:
            elements = gradients.numel()
            group = self.group.callbacks.program_group
            made = FewBits(group, elements, self.bits, self.seed,
                           group.settings.intra_size if group.settings.two_d else 1)
            error = np.zeros(made.own.stop - made.own.start, np.float32)
            self._kept[layout] = made, error
        return self._kept[layout]

    def end_bucket(self, bucket: dist.GradBucket) -> None:
        """Count the first step."""
        self._is_first = self._is_first and not bucket.is_last()


def average_in_few_bits(state: BitsState,
                        bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket over the ranks of the state's group."""
    try:
        return _begin_average(state, bucket)
    except Exception as error:
        state.group.fail(error)  # others wait for this rank's part
        raise


def _begin_average(state: BitsState,
                   bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    gradients, kept = bucket.buffer(), state.kept(bucket)
    state.end_bucket(bucket)
    if kept is None:
        gradients.div_(state.group.size())  # first, as DDP does: float16 may not hold the sum
        work = state.group.allreduce([gradients])
    else:
        call, error = kept
        values = flat_bytes(gradients).view(np.float32)
        work = LightWork([call.allreduce(values, error, average=True)], [gradients])
        work.callbacks = state.group.callbacks
    return work.get_future().then(lambda done: done.value()[0])
