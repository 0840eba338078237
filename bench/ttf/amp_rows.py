"""Row amp-cost: what the controller costs where there is no trouble."""

from __future__ import annotations

import sys
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from bench.arms import Bench, Sample
from bench.comparison import ArmRow
from bench.lightcc.lightcc_rows import Ranks, popen
from bench.rows import by_id
from lab.namespace import Namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.comparison import Arms

STEPS = 1000
"""Steps of a round; `bench.ttf.torch_loops.ROUND`, which only a process with torch can read."""
PATIENCE_S = 1800
"""A step takes 27 ms on a CPU that multiplies bfloat16, and several times that on others."""


@contextmanager
def healthy(bench: Bench) -> Iterator[Arms]:
    """Give a training under the controller and under plain autocast, in one process."""
    with closing(Namespace()) as space:
        process = Ranks([popen(space, "taskset", "-c", str(bench.cpus[1]), sys.executable, "-m",
                               "bench.ttf.torch_loops")])

        def arm(do: str) -> Callable[[], Sample]:
            def take() -> Sample:
                answer = process.ask(do=do, seconds=bench.seconds, patience_s=PATIENCE_S)[0]
                return Sample(1e3 * answer["seconds"] / answer["times"] / STEPS,
                              answer["cpu_s"] / answer["seconds"],
                              {name: answer[name] for name in ("full_share",) if name in answer})
            return take

        yield {"controller": arm("amp"), "autocast": arm("autocast")}


ROWS = by_id((
    ArmRow("amp-cost", "healthy training in bfloat16, one core", healthy, "controller", unit="ms",
           against=("autocast",), target=1.02, lower=True, limits={"full_share": 0.05}),
))
