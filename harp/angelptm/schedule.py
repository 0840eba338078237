"""DeepSpeed's schedules of the learning rate: the configuration's key ``scheduler``.

A warm-up of w steps and a total of t steps give step n, counted from 0, a share of the way from the
least to the largest rate:

    warm-up          n < w: log(n + 1) / log(w), or n / w where warmup_type is linear
    WarmupLR         then 1
    WarmupDecayLR    then (t - n) / (t - w), which ends at 0
    WarmupCosineLR   then half a cosine, from the optimizer's own rate to cos_min_ratio of it

Before the first step the rate is the least one, and so the first two steps have it, as in DeepSpeed
(https://deepspeed.readthedocs.io/en/latest/schedulers.html).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

KINDS = ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR")


@dataclass(frozen=True)
class Schedule:
    """A schedule of the configuration, with DeepSpeed's defaults."""

    kind: str
    warm_up: int = 1000
    total: int = 0
    """Steps; unused by WarmupLR."""
    least: float = 0.0
    """Rate before the warm-up; of WarmupCosineLR its ratio to the optimizer's rate."""
    most: float | None = None
    """Rate after the warm-up; if not given, that of each group of the optimizer."""
    least_ratio: float = 1e-4
    """Last rate of WarmupCosineLR, as a share of the optimizer's rate."""
    linear: bool = False

    def rate(self, most: float, step: int) -> float:
        """Give the rate of a step, counted from 0, of a group; before the first one it is -1."""
        least = self.least * most if self.kind == "WarmupCosineLR" else self.least
        if step < 0:
            return 0.0 if self.kind == "WarmupCosineLR" else least
        warm_up = max(2, self.warm_up)
        if step < warm_up:
            share = step / warm_up if self.linear else math.log(step + 1) / math.log(warm_up)
            return least + (most - least) * share
        left = max(1, self.total - warm_up)
        if self.kind == "WarmupDecayLR":
            return least + (most - least) * max(0.0, (self.total - step) / left)
        if self.kind == "WarmupCosineLR":
            share = (1 + math.cos(math.pi * min(1.0, (step - warm_up + 1) / left))) / 2
            return most * (self.least_ratio + (1 - self.least_ratio) * share)
        return most


def make_scheduler(schedule: Schedule, optimizer: torch.optim.Optimizer,
                   ) -> torch.optim.lr_scheduler.LambdaLR:
    """Make torch's scheduler of it, which sets the rates of all groups after each step."""
    from torch.optim.lr_scheduler import LambdaLR

    most = [group["lr"] if schedule.most is None else schedule.most
            for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] = 1.0  # what LambdaLR multiplies by the rate

    return LambdaLR(optimizer, [
        lambda step, own=own: schedule.rate(float(own), step - 1) for own in most])
