"""DDP's communication hook: gradients averaged as the LIGHT_* variables say.

    model = DistributedDataParallel(net)
    model.register_comm_hook(GradientState(), average_gradients)

A sparse average, or one in few bits, needs memory for what each rank did not send (error feedback),
which a plain ``all_reduce`` has not; so LIGHT_TOPK_ALLREDUCE and LIGHT_BITS come by this hook
alone. A `GradientState` is that memory: save its ``state_dict`` with each rank's checkpoint, else
the gradients that have not been sent are lost.

The first step's average is dense: DDP makes its buckets anew after it, and what was kept for the
old ones would be lost.

The group may be of any backend: with another than ``lightcc`` that one works within a host and
LightCC between hosts (`harp.lightcc.torch.hierarchical`).

`Sparsity` has what Deep Gradient Compression adds (Lin et al., ICLR 2018, section 3). All of it is
off unless asked for.
"""

# DDP looks at the annotations of a hook, which must not be text: no annotations from __future__.
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from harp.lightcc.group import ErrorPart
from harp.lightcc.settings import WHOLE_BITS
from harp.lightcc.torch.backend import LightGroup
from harp.lightcc.torch.hierarchical import HierarchicalGroup

Layout = tuple[int, tuple[int, ...]]
"""Of a bucket: its index, and its parameters' sizes."""


@dataclass(frozen=True)
class Sparsity:
    """Preparation of gradients that are sent sparsely.

    Raises ValueError for values that make no sense.
    """

    momentum: float = 0.0
    """Momentum correction: momentum is gathered before the selection, not by the optimizer, where
    it must be 0. It begins anew for elements that were just updated (factor masking)."""
    clip: float | None = None
    """Largest norm of the gradients of a bucket over all ranks; a rank's own are held to it over
    the square root of the ranks."""
    warm_up: tuple[float, ...] = ()
    """Shares that are sent at first, in place of LIGHT_TOPK_RATIO, as (0.25, 0.0625, 0.0156)."""
    warm_up_steps: int = 1
    """Steps with each of them."""
    sampled: bool = False
    """Whether a threshold from a sample selects, in one pass, instead of the exact largest:
    somewhat fewer are sent (cnet/lightcc/topk.h has the bound)."""
    feedback: bool = True
    """Whether what is not sent is kept. Without it gradients are lost: for comparisons."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is {self.momentum}; allowed is 0 up to below 1")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip is {self.clip}; allowed is a norm above 0")
        if not all(0 < ratio <= 1 for ratio in self.warm_up):
            raise ValueError(f"warm_up is {self.warm_up}; allowed are shares above 0 and up to 1")
        if self.warm_up_steps < 1:
            raise ValueError(f"warm_up_steps is {self.warm_up_steps}; allowed is 1 or more")

    def ratio(self, step: int) -> float | None:
        """Give the share of a step, counted from 0; None where the settings decide."""
        number = step // self.warm_up_steps
        return self.warm_up[number] if number < len(self.warm_up) else None


@dataclass
class BucketMemory:
    """A rank's memory of a bucket from step to step."""

    part: ErrorPart
    """Of the bucket's elements those that ``error`` is about."""
    error: torch.Tensor
    velocity: torch.Tensor | None = None
    """Of all of the bucket, where there is momentum."""

    @property
    def own_error(self) -> torch.Tensor:
        """Error of the bucket's elements, without the filling of the last part."""
        return self.error[:self.part.elements]


class GradientState:
    """A rank's memory of its buckets.

    Args:
        group: over which gradients are averaged; the default group if not given.
        sparsity: what is done beside error feedback.
        host: for a group of another backend than ``lightcc``, the name of this rank's host, which
            is found if not given.

    All ranks of a group of another backend make it after `init_process_group`, together; ValueError
    at all of them where hosts have different numbers of ranks.

    """

    def __init__(self, group: dist.ProcessGroup | None = None,
                 sparsity: Sparsity | None = None, host: str | None = None) -> None:
        self.group = group
        self._hierarchical: HierarchicalGroup | None = None
        if dist.is_initialized() and not isinstance(self._own_group(), LightGroup):
            self._hierarchical = HierarchicalGroup(self._own_group(), host)
        self.sparsity = sparsity or Sparsity()
        self.step = 0
        """Steps that were sparse."""
        self._is_first = True
        self._memories: dict[Layout, BucketMemory] = {}
        self._own: dict[Layout, Any] = {}
        """State loaded for this rank, until its buckets come."""
        self._all: Sequence[dict[Layout, Any]] = ()
        """State loaded for all ranks."""

    def _own_group(self) -> dist.ProcessGroup | None:
        return dist.group.WORLD if self.group is None else self.group

    def averager(self) -> LightGroup | HierarchicalGroup:
        """Give what averages. Raises ValueError where it was not made in time."""
        if self._hierarchical is not None:
            return self._hierarchical
        group = self._own_group()
        if not isinstance(group, LightGroup):
            raise ValueError("GradientState was made before init_process_group; make it after, for "
                             f"the backend {dist.get_backend(self.group)}")
        return group

    def memory_of(self, bucket: dist.GradBucket) -> BucketMemory | None:
        """Give what is kept of a bucket; nothing of one that is averaged densely."""
        gradients = bucket.buffer()
        part = self.averager().error_part(gradients)
        if self._is_first:
            return None
        layout = bucket.index(), tuple(tensor.numel() for tensor in bucket.parameters())
        if layout not in self._memories and part.room:
            self._memories[layout] = self._new_memory(layout, part, gradients)
        elif not part.room and self._own and layout in self._own:
            self._take_back(BucketMemory(part, torch.zeros(0)), self._own[layout])
        elif self._all and not part.room and layout in self._all[0]:
            # Dense from now on, as with one rank: what was not sent is sent at once.
            whole = ErrorPart(0, gradients.numel(), self.averager().size(), gradients.numel())
            left = self._new_memory(layout, whole, gradients).error
            gradients.add_(left.to(gradients.device))
        return self._memories.get(layout)

    def _new_memory(self, layout: Layout, part: ErrorPart,
                    gradients: torch.Tensor) -> BucketMemory:
        memory = BucketMemory(part, torch.zeros(part.room))
        if self.sparsity.momentum:
            if self.averager().settings.bits < WHOLE_BITS:
                raise ValueError("Sparsity gathers momentum for what was not selected, and "
                                 "LIGHT_BITS selects nothing: leave momentum to the optimizer")
            memory.velocity = torch.zeros_like(gradients)
        for known in ([self._own] if self._own else self._all):
            if known and layout not in known:  # dense averages leave nothing to keep
                raise ValueError(f"the checkpoint has no bucket {layout[0]} of these parameters; "
                                 "DDP must have the same bucket_cap_mb as when it was saved")
        if self._own:
            self._take_back(memory, self._own[layout])
        for known in self._all:
            if known:
                self._take_share(memory, known[layout], gradients.numel())
        return memory

    def _take_back(self, memory: BucketMemory, old: dict[str, Any]) -> None:
        if (old["first"], len(old["error"])) != (memory.part.first, memory.part.elements):
            raise ValueError("the checkpoint is of another rank or another LIGHT_INTRA_SIZE; "
                             "load_state_dicts takes the states of all its ranks")
        memory.own_error.copy_(old["error"])
        if memory.velocity is not None and old["velocity"] is not None:
            memory.velocity.copy_(old["velocity"])

    def _take_share(self, memory: BucketMemory, old: dict[str, Any], elements: int) -> None:
        """Take this rank's share of what one rank had not sent, and of its velocity."""
        whole = torch.zeros(elements)
        whole[old["first"]:old["first"] + len(old["error"])] = old["error"]
        part = memory.part
        memory.own_error.add_(whole[part.first:part.first + part.elements] / part.holders)
        if memory.velocity is not None and old["velocity"] is not None:
            memory.velocity += old["velocity"].to(memory.velocity.device) / len(self._all)

    def prepare(self, gradients: torch.Tensor, memory: BucketMemory) -> None:
        """Make gradients ready to be selected from, in place."""
        clip = self.sparsity.clip
        if clip is not None:
            most = clip / self.averager().size() ** 0.5
            gradients.mul_(torch.clamp(most / gradients.norm(), max=1.0))
        if memory.velocity is not None:
            memory.velocity.mul_(self.sparsity.momentum).add_(gradients)
            gradients.copy_(memory.velocity)

    def finish(self, average: torch.Tensor, memory: BucketMemory) -> None:
        """Forget what must not last until the next step."""
        if memory.velocity is not None:
            memory.velocity[(average != 0) | ~memory.velocity.isfinite()] = 0
        if not self.sparsity.feedback:
            memory.error.zero_()

    def end_bucket(self, bucket: dist.GradBucket) -> None:
        """Count steps."""
        if bucket.is_last():
            if self._hierarchical is not None:
                self._hierarchical.end_step()
            if not self._is_first:
                self.step += 1
                self._own, self._all = {}, ()  # every bucket has come
            self._is_first = False

    def state_dict(self) -> dict[str, Any]:
        """Give what this rank's checkpoint must have."""
        if self._all:
            raise ValueError("other ranks' states were loaded and no sparse step has been made "
                             "since: keep the checkpoint that they came from")
        return {"step": self.step, "buckets": {**self._own, **{
            layout: {"first": memory.part.first, "error": memory.own_error.clone(),
                     "velocity": None if memory.velocity is None else memory.velocity.clone()}
            for layout, memory in self._memories.items()}}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back this rank's own, in a job of as many ranks."""
        self._reset_to(state)
        self._own = state["buckets"]

    def load_state_dicts(self, states: Sequence[dict[str, Any]]) -> None:
        """Take back what all ranks of a checkpoint had, in a job of any number of ranks.

        Unsent error is divided: each element's sum over all old ranks goes in equal
        shares to the ranks that now select among it, so that the sum over all ranks stays.
        Velocities become those of the mean rank.
        """
        if not states:
            raise ValueError("load_state_dicts needs the state of every rank of the checkpoint")
        self._reset_to(states[0])
        self._all = [state["buckets"] for state in states]

    def _reset_to(self, state: dict[str, Any]) -> None:
        self._memories, self._own, self._all = {}, {}, ()
        self.step, self._is_first = state["step"], True


def average_gradients(state: GradientState,
                      bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket over the ranks of the state's group."""
    group = state.averager()
    try:
        return _begin_average(state, group, bucket)
    except Exception as error:
        group.fail(error)  # others wait for this rank's part
        raise


def _begin_average(state: GradientState, group: LightGroup | HierarchicalGroup,
                   bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    gradients, memory = bucket.buffer(), state.memory_of(bucket)
    if memory is None:
        gradients.div_(group.size())  # first, as DDP does: float16 may not hold the sum
        work = group.allreduce([gradients])
    else:
        state.prepare(gradients, memory)
        work = group.average_sparsely(gradients, memory.error, state.sparsity.ratio(state.step),
                                      sampled=state.sparsity.sampled)
    state.end_bucket(bucket)

    def finish(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        average = done.value()[0]
        if memory is not None:
            state.finish(average, memory)
        return average
    return work.get_future().then(finish)
