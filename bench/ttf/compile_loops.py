"""Measurements of harp.ttf.compile's rows, in a process that obeys commands.

``fewest`` asks for the compilations that each report of `bench.ttf.recompile_reports` can do with;
``rate`` for steps a second of a recommender's part, with graph passes or without; ``run`` names a
report and a way to compile:

eager      not at all
ours       harp.ttf.compile, with a folder for decisions and code
default    torch.compile as it comes
dynamic    torch.compile(dynamic=True), counters and parameters' shapes dynamic as well
stance     torch.compile; what would be compiled again after the first step runs eagerly

Each run begins without compiled code, but with its compiler loaded and its header precompiled.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache
from torch.compiler._cache import CacheArtifactManager

import harp.ttf
from bench.ttf.recompile_reports import REPORTS
from harp.ttf.embedding import DynamicEmbeddingBag, TableOptimizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


def torch_compiled(thing: Any, **settings: Any) -> Any:
    """Compile a module, or an optimizer's step."""
    return torch.compile(thing.step if isinstance(thing, torch.optim.Optimizer) else thing,
                         **settings)


def setting_of(how: str) -> AbstractContextManager[Any]:
    """Give what torch needs to be set to for a run."""
    settings: dict[str, AbstractContextManager[Any]] = {
        "dynamic": torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True,
                                              force_parameter_static_shapes=False),
        "stance": torch.compiler.set_stance("default")}  # until a step is compiled
    return settings.get(how, nullcontext())


def run(report: str, how: str, steps: int, folder: str = "") -> dict[str, Any]:
    """Run a report's steps, and say how long they took and what was compiled."""
    made: list[Any] = []

    def compiled(thing: Any) -> Any:
        if how == "eager":
            return thing.step if isinstance(thing, torch.optim.Optimizer) else thing
        made.append(harp.ttf.compile(thing, cache=folder or None) if how == "ours" else
                    torch_compiled(thing, dynamic=True if how == "dynamic" else None))
        return made[-1]

    torch.compiler.reset()
    counters.clear()
    torch.manual_seed(0)
    with CacheArtifactManager.with_fresh_cache(), fresh_cache(), setting_of(how):
        begin, cpu = time.perf_counter(), time.process_time()
        step = REPORTS[report].make(compiled)
        for number in range(steps):
            found = step(number)
            if how == "stance" and not number:  # before that it would keep all code from torch
                torch.compiler.set_stance("eager_on_recompile")
        seconds = time.perf_counter() - begin
        for each in made:
            getattr(each, "wait", lambda: None)()
        return {"seconds": seconds, "cpu_s": time.process_time() - cpu,
                "until_idle_s": time.perf_counter() - begin, "found": float(found),
                "graphs": counters["stats"]["unique_graphs"],
                "compiled": counters["inductor"]["fxgraph_cache_miss"],
                "decisions": [each.decisions() for each in made if hasattr(each, "decisions")]}


class Gates(torch.nn.Module):
    """The gates of MMoE for eight tasks and four experts (Ma and others, KDD 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = torch.nn.ModuleList(torch.nn.Linear(128, 4) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give what all gates let through."""
        return torch.cat([torch.softmax(gate(x), 1) for gate in self.gates], 1)


class Features(torch.nn.Module):
    """26 features of Criteo's data in dynamic tables of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = torch.nn.ModuleList(
            DynamicEmbeddingBag(16, mode="sum", seed=seed) for seed in range(26))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give the rows of all features."""
        return torch.cat([bag(x) for bag in self.bags], 1)


PARTS: dict[str, tuple[type[torch.nn.Module], torch.Tensor]] = {
    "linears": (Gates, torch.randn(256, 128)),
    "look-ups": (Features, torch.randint(0, 10_000, (256, 2)))}
_compiled: dict[tuple[str, bool], Any] = {}


def rate(part: str, seconds: float, *, passes: bool) -> dict[str, Any]:
    """Give steps a second, forward and backward; the first call compiles before."""
    kind, batch = PARTS[part]
    fresh = (part, passes) not in _compiled
    if fresh:
        _compiled[part, passes] = harp.ttf.compile(kind(), passes=passes, learn=1, aside=False)
    model = _compiled[part, passes]
    optimizer = TableOptimizer(model) if part == "look-ups" else None

    def step() -> None:
        model(batch).sum().backward()
        if optimizer is not None:
            optimizer.zero_grad()
    for _ in range(5 if fresh else 1):
        step()
    begin, cpu, times = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - begin < seconds:
        step()
        times += 1
    return {"seconds": time.perf_counter() - begin, "times": times,
            "cpu_s": time.process_time() - cpu}


def fewest() -> dict[str, int]:
    """Give the compilations that each report can do with."""
    return {report.name: report.fewest for report in REPORTS.values()}


def main() -> None:
    """Obey commands; a first compilation loads the compiler, and is no command's."""
    torch.set_num_threads(1)
    for size in (4, 5):
        model = torch.nn.Linear(size, 1)
        torch.compile(model)(torch.randn(3, size)).sum().backward()
    print("ready", flush=True)
    for line in sys.stdin:
        what = json.loads(line)
        answers: dict[str, Callable[..., dict[str, Any]]] = {"run": run, "rate": rate,
                                                            "fewest": fewest}
        answer = answers[what.pop("do")](**what)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
