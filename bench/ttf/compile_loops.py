"""Measurements of harp.ttf.compile's rows, in a process that obeys commands.

``fewest`` asks for the compilations that each report of `bench.ttf.recompiles` can do with;
``run`` names a report and a way to compile:

eager      not at all
ours       harp.ttf.compile, with a folder for decisions and code
default    torch.compile as it comes
dynamic    torch.compile(dynamic=True), counters and parameters' shapes dynamic as well
stance     torch.compile; what would be compiled again runs eagerly

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
from bench.ttf.recompiles import REPORTS

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def torch_compiled(thing: Any, **settings: Any) -> Any:
    """Compile a module, or an optimizer's step."""
    return torch.compile(thing.step if isinstance(thing, torch.optim.Optimizer) else thing,
                         **settings)


def setting_of(how: str) -> AbstractContextManager[Any]:
    """Give what torch needs to be set to for a run."""
    if how == "dynamic":
        return torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True,
                                          force_parameter_static_shapes=False)
    if how == "stance":
        return torch.compiler.set_stance("eager_on_recompile")
    return nullcontext()


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
        seconds = time.perf_counter() - begin
        for each in made:
            getattr(each, "wait", lambda: None)()
        return {"seconds": seconds, "cpu_s": time.process_time() - cpu,
                "until_idle_s": time.perf_counter() - begin, "found": float(found),
                "graphs": counters["stats"]["unique_graphs"],
                "compiled": counters["inductor"]["fxgraph_cache_miss"],
                "decisions": [each.decisions() for each in made if hasattr(each, "decisions")]}


def main() -> None:
    """Obey commands; a first compilation loads the compiler, and is no command's."""
    torch.set_num_threads(1)
    for size in (4, 5):
        model = torch.nn.Linear(size, 1)
        torch.compile(model)(torch.randn(3, size)).sum().backward()
    print("ready", flush=True)
    for line in sys.stdin:
        what = json.loads(line)
        answer = (run(**what) if what.pop("do") == "run" else
                  {report.name: report.fewest for report in REPORTS.values()})
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
