"""A rank that trains two small models, dense and by top-k: ``-m bench.lightcc.training``.

The learning rate falls to zero, so that top-k has sent all gradients by the end.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import harp.lightcc.torch  # noqa: F401  (registers the backend)
from bench.lightcc.convergence import ARMS, MODELS
from bench.lightcc.small_models import TASKS, held_figures, smooth_loss
from harp.lightcc.hook import GradientState, Sparsity, average_gradients

WARM_UP = (0.25, 0.12, 0.06, 0.03, 0.015)
"""Shares that are sent in the first 50 steps."""
RATES = dict(zip(MODELS, (0.05, 0.1), strict=True))
STEPS = dict(zip(MODELS, (800, 500), strict=True))


def train(model: str, arm: str, seed: int, share: float) -> dict[str, Any]:
    """Train by one arm; gives the losses, and loss and accuracy on data that were held back."""
    task, steps = TASKS[model], int(STEPS[model] * share)
    torch.manual_seed(seed)
    net = DistributedDataParallel(task.model())
    if arm != "dense":
        sparsity = Sparsity(warm_up=WARM_UP, warm_up_steps=10, feedback=arm == "top-k")
        net.register_comm_hook(GradientState(sparsity=sparsity), average_gradients)
    optimizer = torch.optim.SGD(net.parameters(), RATES[model], momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / steps)))
    losses = []
    for _, (given, wanted) in zip(range(steps), task.batches(seed, dist.get_rank()), strict=False):
        optimizer.zero_grad()
        loss = smooth_loss(net(given), wanted)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(round(float(loss.detach()), 4))
    return {"arm": arm, "seed": seed, "losses": losses, **held_figures(net.module, task.held())}


def main(file: str, share: float, seeds: list[int], models: list[str]) -> None:
    """Train all arms of these models; rank 0 writes the results."""
    torch.set_num_threads(1)
    dist.init_process_group("lightcc")
    found = {name: [train(name, arm, seed, share) for seed in seeds for arm in ARMS]
             for name in models}
    if dist.get_rank() == 0:
        Path(file).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
