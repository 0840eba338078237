"""A run of a batch, forward and backward, in one precision; and going back before it.

Ranks must judge a run alike. The loss is known before the backward pass, so that its mean over
ranks is reduced beneath that pass, asynchronously: it is issued before the first bucket of
gradients and done before the last, so that nobody waits for it. Gradients come reduced from DDP.
So every rank has the same figures in the same step, and no parameter or hook is added to the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils import get_total_norm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn


LEAST_SQUARES = 1e-20
"""Of a smaller norm's squares some are no normal numbers of float32."""


@dataclass(frozen=True)
class Run:
    """Result of a run; the gradients lie in the parameters."""

    loss: float
    """Mean over ranks."""
    norm: float
    """Of unscaled gradients."""
    votes: tuple[float, ...] = ()
    """Sum over ranks of what they had to say."""

    @property
    def finite(self) -> bool:
        """Whether it can be applied."""
        return bool(abs(self.loss) < float("inf") and self.norm < float("inf"))


class Loss:
    """A loss on its way to all ranks, with votes of this rank behind it."""

    def __init__(self, loss: torch.Tensor, votes: list[float], group: Any) -> None:
        self._loss, self._votes, self._ranks = loss.detach(), tuple(votes), 1
        if dist.is_available() and dist.is_initialized():
            self._ranks = dist.get_world_size(group)
        if self._ranks > 1:
            self._message = torch.cat([
                self._loss.float().reshape(1),
                torch.tensor(votes, dtype=torch.float32, device=loss.device)])
            self._work = dist.all_reduce(self._message, group=group, async_op=True)

    def arrive(self, norm: torch.Tensor | float) -> Run:
        """Give the run whose gradients have this norm.

        Of a device, loss and norm are read together: the host waits once.
        """
        message = self._loss.reshape(1)
        if self._ranks > 1:
            self._work.wait()
            message = self._message
        if isinstance(norm, torch.Tensor):
            *known, size = torch.cat([message.float(), norm.float().reshape(1)]).tolist()
        else:
            known, size = message.tolist(), norm
        votes = tuple(known[1:]) if self._ranks > 1 else self._votes
        return Run(known[0] / self._ranks, size, votes)


class Before:
    """Random numbers and buffers as they were, for a second run of the same batch.

    A buffer that did not change since is not copied again. Torch counts the changes of a tensor,
    but not those of running statistics, which are small and copied always.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._device = device
        self._buffers = list(model.buffers())
        self._uncounted = {id(buffer) for module in model.modules()
                           if isinstance(module, _NormBase) for buffer in module.buffers()}
        self._copies: dict[int, tuple[int, torch.Tensor]] = {}

    def keep(self) -> None:
        """Remember this moment."""
        self._random = torch.get_rng_state()
        if self._device.type == "cuda":
            self._cuda_random = torch.cuda.get_rng_state(self._device)
        for buffer in self._buffers:
            if id(buffer) not in self._copies or self._changed(buffer):
                self._copies[id(buffer)] = buffer._version, buffer.detach().clone()

    def restore(self) -> None:
        """Go back to it."""
        torch.set_rng_state(self._random)
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(self._cuda_random, self._device)
        self.restore_buffers()

    def restore_buffers(self) -> None:
        """Go back to the buffers alone."""
        with torch.no_grad():
            for buffer in filter(self._changed, self._buffers):
                copy = self._copies[id(buffer)][1]
                buffer.copy_(copy)
                self._copies[id(buffer)] = buffer._version, copy

    def _changed(self, buffer: torch.Tensor) -> bool:
        return id(buffer) in self._uncounted or self._copies[id(buffer)][0] != buffer._version


def gradients(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Give the gradients that there are; of a sparse one its values, summed by row."""
    found = []
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            found.append(parameter.grad.values())
        elif parameter.grad is not None:
            found.append(parameter.grad)
    return found


def norm_of(parameters: Iterable[torch.Tensor]) -> torch.Tensor | float:
    """Give the norm of all gradients: not finite if one of them is not; of a device, there.

    On the host it is one product of vectors for each gradient, which reads them at the speed of
    memory, and again in double precision where squares do not fit in float32.
    """
    found, squares = gradients(parameters), 0.0
    if not all(gradient.is_cpu for gradient in found):
        return get_total_norm(found)
    for gradient in found:
        flat = gradient.reshape(-1)
        squares += float(torch.dot(flat, flat)) if flat.dtype is torch.float32 else math.inf
    if LEAST_SQUARES < squares < math.inf:
        return math.sqrt(squares)
    return math.hypot(*(float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
                        for gradient in found))


def distance(half: list[torch.Tensor], full: list[torch.Tensor]) -> float:
    """Give how far gradients are from the full ones, by the norm of these.

    Where the full ones are zero, any others are infinitely far.
    """
    if [one.shape for one in half] != [one.shape for one in full]:
        return float("inf")
    off = float(get_total_norm([a - b for a, b in zip(half, full, strict=True)]))
    size = float(get_total_norm(full))
    if size == 0:
        return 0.0 if off == 0 else float("inf")
    return off / size


def call(compute: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Compute a loss, which must be one number with a gradient."""
    if not callable(compute):
        raise ValueError(f"compute is a {type(compute).__name__}; it must be a function that "
                         "computes the loss, since a batch may run twice")
    loss = compute()
    if not (torch.is_tensor(loss) and loss.numel() == 1 and loss.requires_grad):
        shape = tuple(loss.shape) if torch.is_tensor(loss) else type(loss).__name__
        raise ValueError(f"compute() gave {shape}; it must give a loss: a tensor of one element "
                         "that requires a gradient")
    return loss
