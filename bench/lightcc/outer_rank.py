"""A rank that trains by one way to average: commands on stdin, answers on stdout, in JSON.

A command is ``{"do": "train_until", ...}`` with the arguments of `Trainer.train_until`, or one of
torch_rank.py; all ranks get the same. Variables are torchrun's. The clock stands while data that
were held back are judged: by the mean loss of all ranks, since replicas of streaming DiLoCo differ.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench.lightcc.small_models import TASKS, Shape, held_figures, smooth_loss, text_task
from bench.lightcc.torch_rank import Groups, Rank, leave_alone
from harp.lightcc.hook import GradientState, Sparsity, average_gradients
from harp.lightcc.outer import DiLoCo, SparseLoCo, StreamingDiLoCo
from harp.lightcc.outer.islands import Islands

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.lightcc.small_models import Batch, Task
    from harp.lightcc.outer.methods import Outer

WARM_UP_STEPS = 20
"""In which the learning rate rises."""
OUTER: dict[str, Callable[..., Outer]] = {
    "DiLoCo": DiLoCo, "DiLoCo int8": partial(DiLoCo, bits=8), "streaming DiLoCo": StreamingDiLoCo,
    "SparseLoCo": SparseLoCo, "SparseLoCo without feedback": partial(SparseLoCo, decay=0.0)}
LIGHT_TOPK = {"LIGHT_2D_ALLREDUCE": "1", "LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_RATIO": "0.01",
              "LIGHT_TOPK_FP16": "1", "LIGHT_TOPK_THRESHOLD": "4096"}
TOPK_WARM_UP = Sparsity(warm_up=(0.25, 0.12, 0.06, 0.03, 0.015), warm_up_steps=3)


class Trainer:
    """Trains on the groups of a rank."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def train_until(self, *, way: str, task: dict[str, Any], seed: int, steps: int, rate: float,
              judge_every: int, judge_first: int = 0, island: int = 1,
              outer: dict[str, Any] | None = None, falls: bool = False,
              target: float | None = None, beside: int = 0) -> dict[str, Any]:
        """Train for ``steps`` steps, or until the loss on held data is ``target`` or less.

        Args:
            way: of `OUTER`, or ``gloo``, ``lightcc``, ``2d-topk``, ``alone``.
            task: its ``name``, or a transformer's ``shape``, ``batch`` and ``held_back`` windows.
            seed: of parameters and batches.
            steps: most steps.
            rate: AdamW's learning rate.
            judge_every: steps after which held data are judged.
            judge_first: the first of these steps, if it is another one.
            island: ranks of an island.
            outer: arguments of the outer method.
            falls: whether the rate falls to zero by a cosine.
            target: None: train all steps.
            beside: averages between islands that are sent while steps compute; none follows them.
        """
        made = _task_of(task)
        torch.manual_seed(seed)
        net = made.model()
        model, island_groups = self._averaged(net, way, island)
        optimizer = torch.optim.AdamW(net.parameters(), rate)
        method = (OUTER[way](net, optimizer, islands=island_groups, **(outer or {}))
                  if way in OUTER else optimizer)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, partial(_share_of_rate, steps=steps, falls=falls))
        held, losses, judged = made.held(), [], []
        dist.barrier()
        sent = self._begin_averages(beside, net, island)
        took_s, begun = 0.0, time.perf_counter()
        for step, (given, wanted) in enumerate(
                islice(made.batches(seed, dist.get_rank()), steps), 1):
            optimizer.zero_grad()
            loss = smooth_loss(model(given), wanted)
            loss.backward()
            method.step()
            schedule.step()
            losses.append(round(float(loss.detach()), 4))
            if sent and sent[-1].is_completed():
                took_s += time.perf_counter() - begun
                break
            if (step - judge_first) % judge_every == 0:
                took_s += time.perf_counter() - begun
                judged.append((step, took_s, _mean_loss(net, held)))
                if target is not None and judged[-1][-1] <= target:
                    break
                begun = time.perf_counter()
        else:
            took_s += time.perf_counter() - begun
            if method is not optimizer:
                method.settle()
        for work in sent:
            work.wait()
        return {"seconds": took_s, "steps": len(losses), "losses": losses, "judged": judged,
                "tensors": [one.numel() for one in net.parameters()], **held_figures(net, held)}

    def _begin_averages(self, count: int, net: torch.nn.Module, island: int) -> list[dist.Work]:
        """Begin averages of this rank's share of the model, as an outer step makes them."""
        if not count:
            return []
        share = sum(one.numel() for one in net.parameters()) // island
        vectors = [torch.zeros(share) for _ in range(2)]  # one is begun while the other is sent
        between = self._islands(island).between
        return [dist.all_reduce(vectors[number % 2], group=between, async_op=True)
                for number in range(count)]

    def _averaged(self, net: torch.nn.Module, way: str,
                  island: int) -> tuple[torch.nn.Module, Islands | None]:
        if way in OUTER:
            return self._island(net, island)
        light = LIGHT_TOPK | {"LIGHT_INTRA_SIZE": str(island)} if way == "2d-topk" else {}
        group = self._groups.get("gloo" if way == "gloo" else "lightcc", light)
        model = DistributedDataParallel(net, process_group=group)
        if way == "2d-topk":
            model.register_comm_hook(GradientState(group, sparsity=TOPK_WARM_UP), average_gradients)
        elif way == "alone":
            model.register_comm_hook(None, leave_alone)
        return model, None

    def _island(self, net: torch.nn.Module,
                size: int) -> tuple[torch.nn.Module, Islands | None]:
        if size == 1:
            return net, None
        groups = self._islands(size)
        return DistributedDataParallel(net, process_group=groups.within), groups

    def _islands(self, size: int) -> Islands:
        ranks, own = dist.get_world_size(), dist.get_rank()
        within = [self._groups.get("lightcc", {}, range(first, first + size))
                  for first in range(0, ranks, size)][own // size]
        between = [self._groups.get("lightcc", {}, range(place, ranks, size))
                   for place in range(size)][own % size]
        return Islands(between, within)


def _mean_loss(net: torch.nn.Module, held: Batch) -> float:
    loss = torch.tensor(held_figures(net, held)["loss"], dtype=torch.float64)
    dist.all_reduce(loss)
    return float(loss / dist.get_world_size())


def _task_of(task: dict[str, Any]) -> Task:
    if "name" in task:
        return TASKS[task["name"]]
    return text_task(Shape(**task["shape"]), task["batch"], task["held_back"])


def _share_of_rate(step: int, *, steps: int, falls: bool) -> float:
    rising = min(1.0, (step + 1) / WARM_UP_STEPS)
    return rising * (0.5 * (1 + math.cos(math.pi * step / steps)) if falls else 1.0)


def main() -> None:
    """Answer until stdin ends."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = Rank()
    trainer = Trainer(rank.groups)
    print("ready", flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "train_until":
            answer = trainer.train_until(**{key: command[key] for key in command if key != "do"})
        else:
            answer = rank.measure(**command)
        print(json.dumps(answer), flush=True)
    sys.stdout.flush()
    os._exit(0)  # the groups' other ranks end just so


if __name__ == "__main__":
    main()
