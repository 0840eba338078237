"""Settings that `sim.tune --settings` chooses, against a full grid that real stacks run.

The search runs at fidelities flow and packet. Here the real stack runs every choice of a small
grid between namespaces, round after round, and the chosen settings are held against the best
(medians). Top-k is left out, since a laboratory has no GPUs to select. Needs root, Optuna and a
machine at rest.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.rows import Row, by_id
from bench.subject import Subject, each
from sim.answer.progress import progress
from sim.answer.scenario import run_scenario
from sim.answer.settings_search import MIB, RING, TWO_D, Space, scenario_of, search
from sim.cluster.cluster import Cluster
from sim.schema import load

if TYPE_CHECKING:
    from bench.rows import Result
    from sim.answer.settings_search import Point

WITHIN = 0.05
ALGORITHMS = (RING, TWO_D)
BUCKETS = (25 * MIB, 4 * MIB, MIB)
PATHS = (1, 2)


def named(point: Point) -> str:
    """Write a choice in a few words."""
    return f"{point['algorithm']}, buckets of {point['fusion']} B, {point['paths']} paths"


def run_grid(cluster: Cluster, points: list[Point], rounds: int) -> list[float]:
    """Run each choice in the laboratory, in turn; gives medians in seconds of the file."""
    scenario = cluster.topology.scenarios[0]
    seconds: list[list[float]] = [[] for _ in points]
    with progress(rounds * len(points), "lab") as advance:
        for _ in range(rounds):
            for point, found in zip(points, seconds, strict=True):
                advance(0, named(point))
                chosen, settings = scenario_of(scenario, point, "lab")
                result, = run_scenario(cluster, chosen, cluster.gpus, settings)
                found.append(result.step_s)
                advance()
    return [statistics.median(found) for found in seconds]


def compare(file: Path, scale: str, rounds: int) -> Result:
    """Search, run the grid, and compare."""
    cluster = Cluster(load(file, [f"lab.scale={scale}"]))
    scenario = cluster.topology.scenarios[0]
    space = replace(Space.of(cluster, scenario, lossless=True), algorithm=ALGORITHMS,
                    fusion=BUCKETS, paths=PATHS, engines=(1,))
    with tempfile.TemporaryDirectory() as folder, progress(60, "search") as advance:
        found = search(cluster, scenario, space, Path(folder, "journal"), advance)
    points = list(space.points())
    seconds = run_grid(cluster, points, rounds)
    own_s = seconds[points.index(found.best)]
    grid = [{"ms": second * 1e3, "settings": named(point), "chosen": point == found.best}
            for second, point in sorted(zip(seconds, points, strict=True), key=lambda row: row[0])]
    return {"id": ROW, "value": own_s, "unit": "s", "reference": min(seconds),
            "ratio": own_s / min(seconds), "target": 1 + WITHIN, "grid": grid,
            "ok": own_s <= (1 + WITHIN) * min(seconds)}


def line(row: Result) -> str:
    """Write the grid, and the distance of the chosen settings from the best."""
    return "\n".join((*(
        f"{one['ms']:8.1f} ms  {one['settings']}{'  <- chosen' if one['chosen'] else ''}"
        for one in row["grid"]), f"The choice is {100 * (row['ratio'] - 1):.1f} % slower than the "
        f"best of {len(row['grid'])}."))


ROW = "chosen-settings"
ROWS = by_id([Row(ROW, "a step with the chosen settings", compare, unit="s",
                  reference="the best of the grid", target=1 + WITHIN, lower=True)])
SUBJECT = Subject(__doc__ or "", ROWS, each, [
    click.Option(["--file"], type=click.Path(path_type=Path, exists=True), show_default=True,
                 default=Path(__file__).with_name("tune_lab.yaml"), help="The topology."),
    click.Option(["--scale"], default="1/4", show_default=True, help="Of time in the laboratory."),
    click.Option(["--rounds"], default=5, show_default=True),
], "", line)
