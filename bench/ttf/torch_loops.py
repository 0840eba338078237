"""Measurements of TTF's rows on torch, in a process that obeys commands as torch_rank.py does.

amp, autocast   a round of steps of a healthy training, half precision bfloat16
infer           a call of each model of infer_models.py, by eager and by the chosen engine in turn
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from bench.ttf.infer_models import models
from harp.ttf.amp import Controller, Policy
from harp.ttf.infer import optimize

if TYPE_CHECKING:
    from collections.abc import Callable

ROUND = Policy().probe_every
"""Steps of a round: one of them is a probe."""
WIDTH, BATCH, NOISE = 512, 256, 0.1
INFER_BUDGET = "20s"
CALLS = 9
"""Calls of each engine and model in a round: one of a few ms is off by half now and then."""


class Healthy:
    """A training without trouble: an MLP that learns a fixed function, from noisy values.

    Without the noise it would come as near to its 16 batches as half precision can see.
    """

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH),
                                   nn.ReLU(), nn.Linear(WIDTH, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._teacher = torch.randn(WIDTH, 1) / WIDTH ** 0.5
        self._batches = [torch.randn(BATCH, WIDTH) for _ in range(16)]
        self._step = 0

    def loss(self) -> torch.Tensor:
        """Compute the loss of this step's batch."""
        x = self._batches[self._step % len(self._batches)]
        y = torch.tanh(x @ self._teacher) + NOISE * torch.randn(BATCH, 1)
        return nn.functional.mse_loss(self.model(x).float(), y)

    def next(self) -> None:
        """Go to the next batch."""
        self._step += 1


def autocast() -> Callable[[], dict[str, float]]:
    """Give a round under plain autocast."""
    training = Healthy()

    def go() -> dict[str, float]:
        for _ in range(ROUND):
            training.optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = training.loss()
            loss.backward()
            training.optimizer.step()
            training.next()
        return {}
    return go


def amp() -> Callable[[], dict[str, float]]:
    """Give a round under the controller."""
    training = Healthy()
    controller = Controller(training.model, training.optimizer, torch.bfloat16)

    def go() -> dict[str, float]:
        full = 0
        for _ in range(ROUND):
            full += not controller.step(training.loss).half
            training.next()
        return {"full_share": full / ROUND}
    return go


def seconds_of(run: Callable[..., Any], example: tuple[Any, ...]) -> float:
    """Give the seconds of a call after another, since the other engine had the caches."""
    run(*example)
    begin = time.perf_counter()
    run(*example)
    return time.perf_counter() - begin


def infer() -> Callable[[], dict[str, float]]:
    """Give a round over all models: how many times faster than eager, and the worst share."""
    torch.manual_seed(0)
    pairs = []
    for make in models().values():
        model, example = make()
        pairs.append((model.eval(), optimize(model, example, budget=INFER_BUDGET), example))

    def go() -> dict[str, float]:
        faster = []
        for model, fast, example in pairs:
            calls: list[tuple[float, float]] = []
            for _ in range(CALLS):
                ours = seconds_of(fast, example)
                with torch.inference_mode():
                    calls.append((seconds_of(model, example), ours))
            eager, ours = map(statistics.median, zip(*calls, strict=True))
            faster.append(eager / ours)
        return {"faster": statistics.median(faster), "share_of_eager": 1 / min(faster)}
    return go


WORKS: dict[str, Callable[[], Callable[[], dict[str, float]]]] = {
    "amp": amp, "autocast": autocast, "infer": infer}


def main() -> None:
    """Obey commands; what a work needs is made when it is first asked for, and warmed up."""
    made: dict[str, Callable[[], dict[str, float]]] = {}
    print("ready", flush=True)
    for line in sys.stdin:
        what: dict[str, Any] = json.loads(line)
        if what["do"] not in made:
            made[what["do"]] = WORKS[what["do"]]()
            made[what["do"]]()
        begin, cpu = time.perf_counter(), time.process_time()
        rounds: list[dict[str, float]] = []
        while not rounds or time.perf_counter() - begin < what["seconds"]:
            rounds.append(made[what["do"]]())
        more = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
        print(json.dumps({"seconds": time.perf_counter() - begin, "times": len(rounds),
                          "cpu_s": time.process_time() - cpu, **more}), flush=True)


if __name__ == "__main__":
    main()
