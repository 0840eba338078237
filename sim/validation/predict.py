"""What the simulator says to a published figure, and how far it may be off.

A prediction is made with the shipped parameters. Its P10 and P90 come from draws, as those of
`sim.answer.uncertainty`: every parameter that has an interval, what the case leaves open, and the
seed of source ports.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.answer.collective_bench import measure
from sim.answer.parallel import map_shared
from sim.answer.scenario import Settings, run_scenario
from sim.answer.uncertainty import DRAWS, halton, unknowns
from sim.cluster.cluster import Cluster
from sim.validation.case import load_case, load_published

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sim.validation.case import Case, Figure

TAIL = 0.1
"""Share of the draws below the lower, and above the upper end of an interval."""


@dataclass(frozen=True)
class Prediction:
    """A published figure and what the simulator says to it, in the figure's own quantity."""

    case: str
    source: str
    number: int
    """Which of the case's figures it is."""
    figure: Figure
    value: float
    low: float
    high: float
    case_note: str = ""

    @property
    def name(self) -> str:
        """The row in a few words."""
        size = f", {size_in_words(self.figure.size)}" if self.figure.size else ""
        gpus = f", {self.figure.gpus} GPUs" if self.figure.gpus else ""
        return f"{self.case}: {self.figure.scenario}{size}{gpus}"

    @property
    def note(self) -> str:
        """Why it misses, as the case says."""
        return self.figure.note or self.case_note

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.value / self.figure.value - 1.0

    @property
    def covered(self) -> bool:
        """Whether P10 to P90 holds the published value."""
        return self.low <= self.figure.value <= self.high


def predict(cluster: Cluster, figure: Figure, settings: Settings | None = None) -> float:
    """Simulate what a figure tells of, in its own quantity, on its case's cluster."""
    settings = settings or Settings()
    topology = cluster.topology
    scenario = next(each for each in topology.scenarios if each.name == figure.scenario)
    if figure.size is None:
        gpus = figure.gpus or topology.gpu_count
        result = run_scenario(cluster, scenario, gpus, settings)[0]
        return result.step_s if figure.quantity == "step" else result.images_per_s
    default = scenario.allreduce if figure.collective == "allreduce" else figure.collective
    algorithm = figure.algorithm or default
    row = measure(cluster, figure.collective, [figure.size], scenario=scenario, settings=settings,
                  algorithms=[algorithm], chosen=figure.protocol is None).rows[0]
    return {"time": row.time_s, "busbw": row.busbw * 8, "algbw": row.algbw * 8}[figure.quantity]


def predict_files(paths: Sequence[Path], draws: int = DRAWS,
                  workers: int | None = None) -> list[Prediction]:
    """Predict every figure of these cases, side by side on all cores."""
    return [row for rows in map_shared(_predict_file, draws, list(paths), workers) for row in rows]


def _predict_file(draws: int, path: Path) -> list[Prediction]:
    return [row for case in load_published(path) for row in _predict_case(draws, path, case)]


def _predict_case(draws: int, path: Path, case: Case) -> list[Prediction]:
    cluster = Cluster(case.topology)
    values = [predict(cluster, figure) for figure in case.figures]
    spread = np.array([values, *_draws(path, case, draws)])
    low, high = np.quantile(spread[1:] if draws else spread, (TAIL, 1.0 - TAIL), axis=0)
    return [Prediction(path.stem, case.source, number, figure, value, float(least), float(most),
                       case.note)
            for number, (figure, value, least, most)
            in enumerate(zip(case.figures, values, low, high, strict=True))]


def _draws(path: Path, case: Case, draws: int) -> list[list[float]]:
    """Each draw's predictions of all figures."""
    open_ = unknowns(case.topology)
    chance = random.Random(path.stem)
    found = []
    for number, point in enumerate(halton(draws, len(open_), case.topology.seed), 1):
        figures = {unknown.name: unknown.quantile(share)
                   for unknown, share in zip(open_, point.tolist(), strict=True)}
        changes = {key: chance.choice(values) for key, values in case.open.items()}
        drawn = load_case(path, changes) if changes else case
        cluster = Cluster(drawn.topology)
        settings = Settings(figures, seed=case.topology.seed + number)
        found.append([predict(cluster, figure, settings) for figure in drawn.figures])
    return found


def size_in_words(size: int) -> str:
    """Write a size with the largest unit that divides it."""
    for unit, scale in (("GiB", 1 << 30), ("GB", 10**9), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size % scale == 0:
            return f"{size // scale} {unit}"
    return f"{size} B"


def in_words(figure: Figure, value: float) -> str:
    """Write a value of the figure's quantity, as its source would."""
    if figure.quantity == "samples_per_s":
        return f"{value:.4g}/s"
    if figure.quantity in ("step", "time"):
        return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} us"
    return f"{value / 8e9:.3g} GB/s"
