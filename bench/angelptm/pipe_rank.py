"""A rank of a pipeline, or one process that only cuts; obeys commands as torch_rank.py does.

cuts         how much faster the slowest stage of five models is than with cuts between layers
operators    steps of GPT-2 in as many stages as ranks, cut between operators
layers       the same with equally many layers in each stage
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

import harp.lightcc.torch  # noqa: F401  (registers the backend)
from bench.angelptm.pipe_models import MODELS, gpt2, loss_of, tokens
from harp.angelptm.stages import Cuts, pipeline
from harp.angelptm.stages.cuts import cut
from harp.angelptm.stages.measure import measured
from harp.angelptm.stages.operator_program import exported

if TYPE_CHECKING:
    from harp.angelptm.stages import Pipeline, Running

STAGES = range(2, 9)
MICROBATCHES = 4
LAYERS = 12


def ratios() -> list[float]:
    """Give the slowest stage over that of the best cut between layers, for all models and sizes."""
    found = []
    for make in MODELS.values():
        torch.manual_seed(0)
        model, example = make()
        graph, _ = measured(exported(model, example, {}), example, loss_of, runs=3)
        found += [cut(graph, stages).slowest_s
                  / cut(graph, stages, gaps=graph.layer_boundaries).slowest_s
                  for stages in STAGES]
    return found


def equal_layers(pipe: Pipeline) -> Pipeline:
    """Cut so that stages have equally many layers, whatever these cost."""
    operators = pipe.graph.operators
    starts = [next(number for number, operator in enumerate(operators)
                   if operator.layer.endswith(f".h.{LAYERS * stage // pipe.stages}"))
              for stage in range(1, pipe.stages)]
    return replace(pipe, cuts=Cuts((0, *starts, len(operators)), pipe.cuts.seconds))


class Pipes:
    """Both pipelines of one model; the same ranks and parameters run them."""

    def __init__(self) -> None:
        dist.init_process_group("lightcc")
        torch.manual_seed(0)
        model, example = gpt2()
        whole = pipeline(model, example, dist.get_world_size(), loss=loss_of, target=tokens(50257))
        self.running: dict[str, Running] = {
            name: pipe.start("1f1b", MICROBATCHES)
            for name, pipe in (("operators", whole), ("layers", equal_layers(whole)))}
        self.batch = torch.randint(0, 50257, (2, MICROBATCHES, example[0].shape[1]))

    def step(self, name: str) -> None:
        """Run a batch forward and backward; no rank is ahead of another behind it."""
        running = self.running[name]
        for parameter in running.parameters():
            parameter.grad = None
        running.step(self.batch[0], target=self.batch[1])
        dist.barrier()

    def run(self, what: dict[str, Any]) -> dict[str, float]:
        """Run steps until the first rank says that the time is over."""
        self.step(what["do"])
        begun, times = time.perf_counter(), 0
        over = torch.zeros(1)
        while not over:
            self.step(what["do"])
            times += 1
            over.fill_(time.perf_counter() - begun > what["seconds"])
            dist.broadcast(over, 0)
        return {"seconds": time.perf_counter() - begun, "times": times}


def cuts() -> dict[str, float]:
    """Give the quartile of the ratios, and the worst."""
    begun, found = time.perf_counter(), ratios()
    return {"seconds": time.perf_counter() - begun, "times": 1, "worst": max(found),
            "quartile": float(np.quantile(found, 0.25, method="inverted_cdf"))}


def main() -> None:
    """Answer until stdin ends."""
    torch.set_num_threads(1)
    pipes = Pipes() if "RANK" in os.environ else None
    print("ready", flush=True)
    for line in sys.stdin:
        what = json.loads(line)
        answer = cuts() if pipes is None else pipes.run(what)
        print(json.dumps(answer), flush=True)
    if pipes is not None:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
