"""A rank of a pipeline, or one process that only cuts; obeys commands as torch_rank.py does.

cuts         how much faster the slowest stage of five models is than with cuts between layers
operators    steps of GPT-2 in as many stages as ranks, cut between operators
layers       the same with equally many layers in each stage
unsplit      the same microbatches through the whole model, at every rank by itself
alone        the same at the first rank, while the others wait
copy         a copy within memory, of COPY_BYTES
link         each rank sends LINK_BYTES to all others
plan         shares of the stages in a microbatch's time, and the bytes of a step
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

import harp.lightcc.torch  # noqa: F401  (registers the backend)
from bench.angelptm.pipe_models import MODELS, ROWS, gpt2, loss_of, tokens
from bench.angelptm.sizes import COPY_BYTES, LINK_BYTES, MICROBATCHES
from harp.angelptm.stages import Cuts, pipeline
from harp.angelptm.stages.cuts import cut
from harp.angelptm.stages.measure import measured
from harp.angelptm.stages.operator_program import exported
from harp.lightcc.torch_base.single import all_gather_single

if TYPE_CHECKING:
    from collections.abc import Callable

    from harp.angelptm.stages import Pipeline, Running

STAGES = range(2, 9)
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
        self.model, example = gpt2()
        self.pipe = pipe = pipeline(self.model, example, dist.get_world_size(), loss=loss_of,
                                    target=tokens(50257))
        self.running: dict[str, Running] = {
            name: pipe.start("1f1b", MICROBATCHES)
            for name, pipe in (("operators", pipe), ("layers", equal_layers(pipe)))}
        self.batch = torch.randint(0, 50257, (2, MICROBATCHES, example[0].shape[1]))
        memory = [torch.zeros(COPY_BYTES, dtype=torch.uint8) for _ in range(2)]
        given = torch.zeros(LINK_BYTES, dtype=torch.uint8)
        received = given.new_empty(dist.get_world_size() * LINK_BYTES)
        self.work: dict[str, Callable[[], object]] = {
            **{name: partial(self.step, name) for name in self.running}, "unsplit": self.unsplit,
            "alone": self.unsplit if dist.get_rank() == 0 else lambda: None,
            "copy": partial(memory[0].copy_, memory[1]),
            "link": partial(all_gather_single, received, given)}

    def step(self, name: str) -> None:
        """Run a batch forward and backward; no rank is ahead of another behind it."""
        running = self.running[name]
        for parameter in running.parameters():
            parameter.grad = None
        running.step(self.batch[0], target=self.batch[1])
        dist.barrier()

    def unsplit(self) -> None:
        """Run a batch through the whole model."""
        self.model.zero_grad()
        for given, target in zip(*(each.split(ROWS) for each in self.batch), strict=True):
            loss_of(self.model(given), target).backward()
        self.model.zero_grad()  # or the stages would hold other stages' gradients

    def plan(self) -> dict[str, Any]:
        """Give what a prediction takes from the plan, which all ranks have."""
        graph, gaps = self.pipe.graph, self.pipe.cuts.gaps
        running, whole_s = self.running["operators"], float(graph.seconds[-1])
        own = dict(running.named_parameters())
        return {"forward": [sum(each.forward_s for each in graph.operators[begin:end]) / whole_s
                            for begin, end in pairwise(gaps)],
                "both": (np.diff(graph.seconds[list(gaps)]) / whole_s).tolist(),
                "sent_bytes": float(graph.crossing_bytes[list(gaps[1:-1])].max()),
                "tied_bytes": sum(own[name].nbytes for name, _ in running.shared),
                "gradient_bytes": sum(each.nbytes for each in own.values())}

    def run(self, what: dict[str, Any]) -> dict[str, Any]:
        """Run steps until the first rank says that the time is over."""
        if what["do"] == "plan":
            return self.plan()
        work = self.work[what["do"]]
        work()
        begun, times = time.perf_counter(), 0
        over = torch.zeros(1)
        while not over:
            work()
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
