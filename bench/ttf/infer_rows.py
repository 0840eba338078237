"""Row infer: the engine that `harp.ttf.infer.optimize` chooses, beside eager, over six models."""

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
    from collections.abc import Iterator

    from bench.comparison import Arms

PATIENCE_S = 900.0
"""For the first answer, before which each engine is compiled and tried on each model."""


@contextmanager
def six_models(bench: Bench) -> Iterator[Arms]:
    """Give the speed-up over eager; both run in turn in one process, on all CPUs."""
    with closing(Namespace()) as space:
        process = Ranks([popen(space, sys.executable, "-m", "bench.ttf.torch_loops")])

        def take() -> Sample:
            answer = process.ask(do="infer", seconds=bench.seconds, patience_s=PATIENCE_S)[0]
            return Sample(answer["faster"], answer["cpu_s"] / answer["seconds"],
                          {"share_of_eager": answer["share_of_eager"]})

        yield {"chosen engine": take}


ROWS = by_id((
    ArmRow("infer", "six models, median speed-up over eager", six_models, "chosen engine",
           unit="x", target=1.5, limits={"share_of_eager": 1.0}),
))
