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

from harp.angelptm.stages.cuts import CutError, in_flight

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
        self.microbatches = microbatches
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
        Gives the loss on the rank that has the last stage.
        """
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

    def add_up_shared(self) -> None:
        """Add the gradients of tied parameters up among their ranks."""
        own = dict(self.named_parameters())
        for name, group in self.shared:
            parameter = own[name]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)


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
