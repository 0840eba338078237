"""Rows of harp.ttf.compile beside torch.compile, over the twelve reports of `recompiles`.

compile    seconds of 1,000 steps, cold caches, of the first call and all compilation that a step
           waits for; the median share of torch.compile's default, and limits on single reports. The
           best setting is the faster of torch.compile as it comes, with dynamic=True (and counters
           and parameters' shapes dynamic), and with the stance eager_on_recompile after the first
           step
short      the largest share of eager's seconds for the same steps: what compiling costs a training
           that is too short for it
graphs     most compilations of a report beyond the fewest possible, which it states
warm       compilations of a second start from the same folder, all reports together
pass-...   forward and backward of eight gates, and of 26 dynamic embeddings, with the graph passes
           of `harp.ttf.compiler.passes` and without

All run on one thread, so that a second CPU is left to compile in the background.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.arms import Bench, Sample
from bench.comparison import ArmRow
from bench.lightcc.lightcc_rows import Ranks, popen
from bench.rows import by_id
from bench.subject import BenchError
from lab.namespace import Namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.comparison import Arms, Group

STEPS = 1000
WARM_STEPS = 100
SETTINGS = ("default", "dynamic", "stance")
"""Of torch.compile; `bench.ttf.compile_loops` says what they are."""
PATIENCE_S = 900.0
OFF = 1e-3
"""Most that a result may be off torch.compile's, by its size."""


class Reports:
    """Runs of the reports, each made once: a cold start is the same at the second time."""

    def __init__(self, space: Namespace, folder: Path) -> None:
        self._space, self._folder = space, folder
        self._process = self._start()
        self._fewest: dict[str, int] = self._process.ask(do="fewest")[0]
        self._first: dict[str, dict[str, dict[str, Any]]] = {}

    def _start(self) -> Ranks:
        return Ranks([popen(self._space, sys.executable, "-m", "bench.ttf.compile_loops")])

    def _run(self, process: Ranks, report: str, how: str, steps: int) -> dict[str, Any]:
        return process.ask(patience_s=PATIENCE_S, do="run", report=report, how=how, steps=steps,
                           folder=str(self._folder / report))[0]

    def run(self, how: str) -> dict[str, dict[str, Any]]:
        """Give what came of all reports, compiled in one way."""
        if how not in self._first:
            self._first[how] = {report: self._run(self._process, report, how, STEPS)
                                for report in self._fewest}
        return self._first[how]

    def shares(self) -> Sample:
        """Give the median share of the default's seconds, and the largest shares."""
        ours = self.run("ours")
        others = {how: self.run(how) for how in SETTINGS}
        for report, found in ours.items():
            right = others["default"][report]["found"]
            if abs(found["found"] - right) > OFF * abs(right):
                raise BenchError(f"report {report}: harp.ttf.compile gave {found['found']:g}, "
                                 f"torch.compile {right:g}")
        default = [ours[report]["seconds"] / others["default"][report]["seconds"]
                   for report in ours]
        best = [ours[report]["seconds"] / min(each[report]["seconds"] for each in others.values())
                for report in ours]
        seconds = sum(each["seconds"] for each in ours.values())
        return Sample(statistics.median(default),
                      sum(each["cpu_s"] for each in ours.values()) / seconds,
                      {"of_default_at_most": max(default), "of_best_setting_at_most": max(best)})

    def share_of_eager(self) -> Sample:
        """Give the largest share of the seconds that a report takes without any compiler."""
        ours, eager = self.run("ours"), self.run("eager")
        return Sample(max(ours[report]["seconds"] / eager[report]["seconds"] for report in ours))

    def graphs(self) -> Sample:
        """Give the most compilations that a report had beyond the fewest possible."""
        return Sample(max(found["graphs"] - self._fewest[report]
                          for report, found in self.run("ours").items()))

    def second_start(self) -> Sample:
        """Give the compilations of all reports in a new process, with the same folder."""
        self.run("ours")
        process = self._start()
        return Sample(sum(self._run(process, report, "ours", WARM_STEPS)["compiled"]
                          for report in self._fewest))


@contextmanager
def twelve_reports(bench: Bench) -> Iterator[Arms]:
    """Give the three figures of the reports."""
    del bench
    with closing(Namespace()) as space, tempfile.TemporaryDirectory() as folder:
        reports = Reports(space, Path(folder))
        yield {"share of default": reports.shares, "share of eager": reports.share_of_eager,
               "graphs": reports.graphs, "second start": reports.second_start}


def part(name: str) -> Group:
    """Make the group of a recommender's part, with passes and without."""
    @contextmanager
    def group(bench: Bench) -> Iterator[Arms]:
        with closing(Namespace()) as space:
            process = Ranks([popen(space, sys.executable, "-m", "bench.ttf.compile_loops")])

            def arm(*, passes: bool) -> Callable[[], Sample]:
                def take() -> Sample:
                    answer = process.ask(patience_s=PATIENCE_S, do="rate", part=name,
                                         seconds=bench.seconds, passes=passes)[0]
                    return Sample(answer["times"] / answer["seconds"],
                                  answer["cpu_s"] / answer["seconds"])
                return take

            yield {"passes": arm(passes=True), "no passes": arm(passes=False)}
    return group


ROWS = by_id((
    ArmRow("compile", "12 reports, 1,000 steps, share of default's s", twelve_reports,
           "share of default", unit="x", target=0.7, lower=True, most_rounds=1,
           limits={"of_default_at_most": 1.05, "of_best_setting_at_most": 1.05}),
    ArmRow("short", "the same, largest share of eager's s", twelve_reports, "share of eager",
           unit="x", target=0.0, lower=True, most_rounds=1),
    ArmRow("graphs", "compilations beyond the fewest possible", twelve_reports, "graphs",
           unit="graphs", target=1.0, lower=True, most_rounds=1),
    ArmRow("warm", "compilations of a second start", twelve_reports, "second start",
           unit="graphs", target=0.5, lower=True, most_rounds=1),
    ArmRow("pass-linears", "8 gates of 4 over one input", part("linears"), "passes",
           against=("no passes",), unit="steps/s"),
    ArmRow("pass-look-ups", "26 dynamic embeddings", part("look-ups"), "passes",
           against=("no passes",), unit="steps/s"),
))
