"""A rank's stages under a schedule of `torch.distributed.pipelining`.

Every rank of the group has the stages `rank`, `rank + ranks`, … of the pipeline, and their
parameters alone. A parameter that stages of several ranks have (a tied one) is there on each of
them; after a step its gradients are added up among these ranks, so that equal optimizers keep it
equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import fx, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.utils._pytree import tree_leaves

from harp.angelptm.stages.cuts import CutError, in_flight
from harp.lightcc.failure import GroupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harp.angelptm.stages.stage import Value


class Running:
    """The pipeline as one rank runs it."""

    def __init__(self, modules: dict[int, fx.GraphModule], forms: Sequence[list[Value]],
                 shared: list[tuple[str, set[int]]], schedule: str, microbatches: int,
                 loss: Callable[..., torch.Tensor] | None,
                 group: dist.ProcessGroup | None) -> None:
        ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        count = len(forms) - 1
        in_flight(schedule, count, ranks, microbatches)  # refuses what cannot be
        if schedule == "1f1b" and microbatches < count:
            raise CutError(f"{microbatches} microbatches are wanted: 1f1b on {count} stages takes "
                           f"{count} or more")
        self.modules = modules
        self.first, self.last = 0 in modules, count - 1 in modules
        device = next((one.device for module in modules.values()
                       for one in (*module.parameters(), *module.buffers())),
                      torch.device("cpu"))
        stages = [PipelineStage(
            module, number, count, device,
            input_args=tuple(form.empty(device) for form in forms[number]),
            output_args=tuple(form.empty(device) for form in forms[number + 1]),
            input_grads=tuple(form.gradient(device) for form in forms[number]),
            output_grads=tuple(form.gradient(device) for form in forms[number + 1]),
            group=group) for number, module in sorted(modules.items())]
        self.schedule: Any  # of three classes that share no typed `step`
        if schedule == "interleaved":
            self.schedule = ScheduleInterleaved1F1B(stages, microbatches, loss_fn=loss,
                                                    scale_grads=False)
        else:
            kind = ScheduleGPipe if schedule == "gpipe" else Schedule1F1B
            self.schedule = kind(stages[0], microbatches, loss_fn=loss, scale_grads=False)
        self.microbatches, self._group = microbatches, group
        self._inputs, self._has_loss = forms[0], loss is not None
        self.shared = _groups(shared, ranks, group)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of this rank's stages, by the names that the model has for them."""
        seen: set[int] = set()
        for _, module in sorted(self.modules.items()):
            for name, parameter in module.named_parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield name, parameter

    def parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of this rank's stages, for an optimizer."""
        for _, parameter in self.named_parameters():
            yield parameter

    def step(self, *batch: Any, target: Any = None) -> torch.Tensor | None:
        """Run a batch forward and backward; gradients are those of the mean over microbatches.

        Every rank may give the batch: the first one uses the arguments, the last one the target.
        Gives the loss on the rank that has the last stage. ValueError for a batch of another size
        than all microbatches together.
        """
        self._check(batch, target)
        losses: list[torch.Tensor] = []
        # The gradients that are there belong to an earlier batch: this one's are scaled by
        # themselves, and added to them.
        before = {id(one): one.grad for one in self.parameters()}
        for one in self.parameters():
            one.grad = None
        self.schedule.step(*(batch if self.first else ()),
                           **({"target": target, "losses": losses} if self.last else {}))
        for one in self.parameters():
            if one.grad is not None:  # torch would scale what two stages of a rank share twice
                one.grad.div_(self.microbatches)
        self.add_up_shared()
        for one in self.parameters():
            if (old := before[id(one)]) is not None:
                one.grad = old if one.grad is None else old.add_(one.grad)
        return torch.stack([one.detach() for one in losses]).mean() if self.last else None

    def _check(self, batch: Sequence[Any], target: Any) -> None:
        """Refuse what stages were not made for: their messages have one size. ValueError."""
        if not self._has_loss:
            raise ValueError("the pipeline was made without a loss: pipeline(..., loss=) is needed "
                             "to train")
        if self.last and target is None:
            raise ValueError("the batch has no target: step(..., target=) is needed for the loss")
        if len(batch) == len(self._inputs):
            for number, (given, form) in enumerate(zip(batch, self._inputs, strict=True)):
                wanted = [self.microbatches * size for size in form.shape[:1]] + [*form.shape[1:]]
                if isinstance(given, torch.Tensor) and list(given.shape) != wanted:
                    raise ValueError(f"argument {number} of the batch is {list(given.shape)}: "
                                     f"{wanted} is possible, {self.microbatches} microbatches of "
                                     f"{list(form.shape)}")
        for one in tree_leaves(target):
            if isinstance(one, torch.Tensor) and one.dim() and len(one) % self.microbatches:
                raise ValueError(f"the target is {list(one.shape)}: a multiple of the "
                                 f"{self.microbatches} microbatches is possible")

    def add_up_shared(self) -> None:
        """Add the gradients of tied parameters up among their ranks.

        A failure is that of the group of all ranks, which names the rank at fault.
        """
        own = dict(self.named_parameters())
        for name, group in self.shared:
            parameter = own[name]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            try:
                dist.all_reduce(parameter.grad, group=group)
            except GroupError:
                # It numbers its own ranks, and may have failed by one that left because of a third.
                dist.barrier(self._group)
                raise


def _groups(shared: list[tuple[str, set[int]]], ranks: int, group: dist.ProcessGroup | None,
            ) -> list[tuple[str, dist.ProcessGroup]]:
    """Make a group for each set of ranks; every rank takes part in making each of them."""
    found: list[tuple[str, dist.ProcessGroup]] = []
    made: dict[tuple[int, ...], Any] = {}
    for name, members in shared:
        owners = tuple(sorted({stage % ranks for stage in members}))
        if len(owners) < 2:
            continue
        if owners not in made:
            whole = group or dist.group.WORLD
            assert whole is not None
            made[owners] = dist.new_group([dist.get_global_rank(whole, one) for one in owners])
        if dist.get_rank(group) in owners:
            found.append((name, made[owners]))
    return found
