"""Chosen settings beside a full grid in the laboratory: ``python bench/tune/lab_grid.py [FILE]``.

`sim.tune --settings` searches at fidelities flow and packet; here the real stack runs every choice
of a small grid between namespaces, round after round, and what the search chose is held against the
best of them (medians). Top-k is left out, since a laboratory has no GPUs to select. Ends with
status 1 where the choice is more than 5 % slower. Needs root, Optuna and a machine at rest.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING


from sim.answer.progress import progress
from sim.answer.scenario import run_scenario
from sim.answer.settings_search import MIB, RING, TWO_D, Space, scenario_of, search
from sim.cluster.cluster import Cluster
from sim.schema import load

if TYPE_CHECKING:
    from sim.answer.settings_search import Point

ROOT = Path(__file__).resolve().parent.parent
WITHIN = 0.05
ALGORITHMS = (RING, TWO_D)
BUCKETS = (25 * MIB, 4 * MIB, MIB)
PATHS = (1, 2)


def named(point: Point) -> str:
    """Write a choice in a few words."""
    return f"{point['algorithm']}, buckets of {point['fusion']} B, {point['paths']} paths"


def measure(cluster: Cluster, points: list[Point], rounds: int) -> list[float]:
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


def main() -> int:
    """Search, measure the grid, and compare."""
    parser = argparse.ArgumentParser(description="Chosen settings beside a full grid in the lab.")
    parser.add_argument("file", nargs="?", default=str(ROOT / "bench" / "tune_lab.yaml"))
    parser.add_argument("--scale", default="1/4", help="of time in the laboratory (default 1/4)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    cluster = Cluster(load(Path(options.file), [f"lab.scale={options.scale}"]))
    scenario = cluster.topology.scenarios[0]
    space = replace(Space.of(cluster, scenario, lossless=True), algorithm=ALGORITHMS,
                    fusion=BUCKETS, paths=PATHS, engines=(1,))
    with tempfile.TemporaryDirectory() as folder, progress(60, "search") as advance:
        found = search(cluster, scenario, space, Path(folder, "journal"), advance)
    points = list(space.points())
    seconds = measure(cluster, points, options.rounds)
    for second, point in sorted(zip(seconds, points, strict=True), key=lambda row: row[0]):
        mark = "  <- chosen" if point == found.best else ""
        print(f"{second * 1e3:8.1f} ms  {named(point)}{mark}")
    off = seconds[points.index(found.best)] / min(seconds) - 1
    print(f"The choice is {100 * off:.1f} % slower than the best of {len(points)}.")
    return int(off > WITHIN)


if __name__ == "__main__":
    sys.exit(main())
