"""Rows of harp.ttf.compile beside torch.compile, over the twelve reports of `recompiles`.

compile    seconds of 1,000 steps, cold caches, of the first call and all compilation that a step
           waits for; the median share of torch.compile's default, and limits on single reports. The
           best setting is the faster of torch.compile as it comes, with dynamic=True (and counters
           and parameters' shapes dynamic), and with the stance eager_on_recompile. Ours and the
           settings near the best run three times, in turn, and medians are held together.
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
ROUNDS, NEAR = 3, 1.5
"""Runs of ours and of the settings that took at most this times the fastest's seconds: some seconds
are off by half now and then."""
PATIENCE_S = 900.0
OFF = 1e-3
"""Most that a result may be off torch.compile's, by its size."""


class Reports:
    """Runs of the reports, all with cold caches."""

    def __init__(self, space: Namespace, folder: Path) -> None:
        self._space, self._folder = space, folder
        self._process = self._start()
        self._fewest: dict[str, int] = self._process.ask(do="fewest")[0]
        self._runs: dict[tuple[str, str], list[dict[str, Any]]] = {}

    def _start(self) -> Ranks:
        return Ranks([popen(self._space, sys.executable, "-m", "bench.ttf.compile_loops")])

    def _run(self, process: Ranks, report: str, how: str, steps: int,
             number: int = 1) -> dict[str, Any]:
        return process.ask(patience_s=PATIENCE_S, do="run", report=report, how=how, steps=steps,
                           folder=str(self._folder / f"{report}-{number}"))[0]

    def runs(self, report: str, how: str, least: int = 1) -> list[dict[str, Any]]:
        """Give runs of a report, compiled in one way, after as many as are missing."""
        made = self._runs.setdefault((report, how), [])
        while len(made) < least:
            made.append(self._run(self._process, report, how, STEPS, len(made) + 1))
        return made

    def _seconds(self, report: str, how: str) -> float:
        return statistics.median(each["seconds"] for each in self.runs(report, how))

    def _in_turn(self, report: str) -> None:
        """Run a report in all ways, and those that matter again."""
        self.runs(report, "ours")
        seconds = {how: self._seconds(report, how) for how in SETTINGS}
        near = [how for how in SETTINGS if seconds[how] <= NEAR * min(seconds.values())]
        for least in range(2, ROUNDS + 1):
            for how in ("ours", *near):
                self.runs(report, how, least)

    def shares(self) -> Sample:
        """Give the median share of the default's seconds, and the largest shares."""
        default, best = [], []
        for report in self._fewest:
            self._in_turn(report)
            right = self.runs(report, "default")[0]["found"]
            for run in self.runs(report, "ours"):
                if abs(run["found"] - right) > OFF * abs(right):
                    raise BenchError(f"report {report}: harp.ttf.compile gave {run['found']:g}, "
                                     f"torch.compile {right:g}")
            ours, *others = (self._seconds(report, how) for how in ("ours", *SETTINGS))
            default.append(ours / others[0])
            best.append(ours / min(others))
        runs = [run for report in self._fewest for run in self.runs(report, "ours")]
        return Sample(statistics.median(default),
                      sum(run["cpu_s"] for run in runs) / sum(run["seconds"] for run in runs),
                      {"of_default_at_most": max(default), "of_best_setting_at_most": max(best)})

    def graphs(self) -> Sample:
        """Give the most compilations that a report had beyond the fewest possible."""
        return Sample(max(run["graphs"] - fewest for report, fewest in self._fewest.items()
                          for run in self.runs(report, "ours")))

    def second_start(self) -> Sample:
        """Give the compilations of all reports in a new process, with the same folder."""
        for report in self._fewest:
            self.runs(report, "ours")
        process = self._start()
        return Sample(sum(self._run(process, report, "ours", WARM_STEPS)["compiled"]
                          for report in self._fewest))


@contextmanager
def twelve_reports(bench: Bench) -> Iterator[Arms]:
    """Give the three figures of the reports."""
    del bench
    with closing(Namespace()) as space, tempfile.TemporaryDirectory() as folder:
        reports = Reports(space, Path(folder))
        yield {"share of default": reports.shares, "graphs": reports.graphs,
               "second start": reports.second_start}


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
    ArmRow("graphs", "compilations beyond the fewest possible", twelve_reports, "graphs",
           unit="graphs", target=1.0, lower=True, most_rounds=1),
    ArmRow("warm", "compilations of a second start", twelve_reports, "second start",
           unit="graphs", target=0.5, lower=True, most_rounds=1),
    ArmRow("pass-linears", "8 gates of 4 over one input", part("linears"), "passes",
           against=("no passes",), unit="steps/s"),
    ArmRow("pass-look-ups", "26 dynamic embeddings", part("look-ups"), "passes",
           against=("no passes",), unit="steps/s"),
))
