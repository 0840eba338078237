"""Batch normalization over the batches of all ranks.

Horovod's takes tensors on GPUs only; this one those on the CPU. Two reductions a forward pass, of
sums and of squares of what is left without the mean, so that nothing is lost where the mean is
large. A rank that has joined brings no sample.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from harp.lightcc.horovod.torch.asynchronous import Sum
from harp.lightcc.horovod.torch.ops import allreduce


class SyncBatchNorm(_BatchNorm):
    """As `torch.nn.BatchNorm1d` and its kin, with the mean and variance of all ranks.

    Args:
        num_features: channels, the second dimension.
        eps, momentum, affine, track_running_stats: as there.

    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
                 affine: bool = True, track_running_stats: bool = True) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002  (torch's)
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  (torch's)
        """Normalize."""
        if not self.training and self.track_running_stats:
            return super().forward(input)
        self._check_input_dim(input)
        dimensions = [at for at in range(input.dim()) if at != 1]
        samples = input.new_full((1,), input.numel() // input.shape[1], dtype=torch.float64)
        sums = input.sum(dimensions, dtype=torch.float64)
        totals = allreduce(torch.cat([sums, samples]), op=Sum)
        count = totals[-1].detach()
        mean = totals[:-1] / count
        apart = input - _spread(mean, input)
        variance = allreduce((apart * apart).sum(dimensions, dtype=torch.float64), op=Sum) / count
        if self.training and self.track_running_stats:
            self._track(mean.detach(), (variance * count / (count - 1).clamp(min=1)).detach())
        scale: Any = torch.rsqrt(variance + self.eps)
        if self.weight is not None:
            scale = scale * self.weight
        result = apart * _spread(scale, input)
        return result if self.bias is None else result + _spread(self.bias, input)

    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_(variance.to(self.running_var), share)


def _spread(of_channels: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Give each channel's value a shape to be combined with an input."""
    return of_channels.to(like.dtype).reshape(1, -1, *[1] * (like.dim() - 2))
