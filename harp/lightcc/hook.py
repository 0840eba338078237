"""DDP's communication hook: gradients averaged as the LIGHT_* variables say, top-k included.

    model = DistributedDataParallel(net)
    model.register_comm_hook(GradientState(), average_gradients)

A sparse average needs memory for what each rank did not send (error feedback), which a plain
``all_reduce`` has not; so top-k comes by this hook alone. A `GradientState` is that memory: save
its ``state_dict`` with each rank's checkpoint, else the gradients that have not been sent are lost.
"""

# DDP looks at the annotations of a hook, which must not be text: no annotations from __future__.
from typing import Any

import torch
import torch.distributed as dist

from harp.lightcc.torch import LightGroup

Layout = tuple[int, tuple[int, ...]]


class GradientState:
    """The errors of a rank's buckets.

    Args:
        group: over which gradients are averaged; the default group if not given.

    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self._errors: dict[Layout, torch.Tensor] = {}

    def light_group(self) -> LightGroup:
        """Give the group. Raises ValueError where it is of another backend."""
        group = dist.group.WORLD if self.group is None else self.group
        if not isinstance(group, LightGroup):
            raise ValueError("average_gradients needs a group of the backend lightcc, and this one "
                             f"is of {dist.get_backend(self.group)}")
        return group

    def error_of(self, bucket: dist.GradBucket, nbytes: int) -> torch.Tensor:
        """Give the error of a bucket; of one with other parameters than before it is zero.

        DDP makes its buckets anew once, after the first step.
        """
        layout = bucket.index(), tuple(tensor.numel() for tensor in bucket.parameters())
        found = self._errors.get(layout)
        if found is None:
            for old in [other for other in self._errors if other[0] == layout[0]]:
                del self._errors[old]
            found = self._errors[layout] = torch.zeros(nbytes // 4)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Give what a checkpoint must have."""
        return {"errors": dict(self._errors)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back. Of another number of ranks, errors of another size begin at zero."""
        self._errors = dict(state["errors"])


def average_gradients(state: GradientState,
                      bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket over the ranks of the state's group."""
    gradients = bucket.buffer()
    group = state.light_group()
    nbytes = group.error_bytes(gradients)
    error = state.error_of(bucket, nbytes) if nbytes else None
    work = group.average(gradients, error)
    return work.get_future().then(lambda done: done.value()[0])
