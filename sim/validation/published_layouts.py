"""Published rows of large models against predictions that are fitted to none of them.

``python -m sim.validation.published_layouts`` prints a line for each row of ``layouts.yaml``, and
the median error of each source. Rows that a default was chosen with are shown, and count apart.

A row says what it trains and on how many GPUs, how the model is split, and one figure: TFLOP/s of a
GPU with what is computed again, the MFU, the time of a step, or tokens/s, of all GPUs or of one.
Bytes and seconds of all else are the simulator's defaults. ``overlaps`` of a source says that its
program sends pieces of tensors and what stages of several pieces exchange, and gathers parameters,
beside compute, wherever a row has any.
``checked`` says against what its figures were held, word for word, and when; it is for readers.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from sim.answer.scenario import Run
from sim.cluster.cluster import Cluster
from sim.schema.checks import check
from sim.schema.parameters import PLAIN_VALUES
from sim.schema.topology_model import Topology

FILE = Path(__file__).parent / "layouts.yaml"
HOST = 8
NEAR = 0.25
SHAPE = ("layers", "width", "heads")
FIGURES = {"tflops": "TFLOP/s a GPU", "mfu": "MFU", "step": "s a step", "tokens": "tokens/s",
           "gpu_tokens": "tokens/s a GPU"}
"""Quantities of a row."""


@dataclass(frozen=True)
class Row:
    """A published row: its source, name and figure, and the topology to run."""

    source: str
    name: str
    gpus: int
    figure: str
    published: float
    topology: Topology
    counts: bool
    """Whether no default was chosen with it."""


@dataclass(frozen=True)
class Scored:
    """A row and what the simulator says."""

    row: Row
    predicted: float

    @property
    def error(self) -> float:
        """Relative error of the speed, positive where the simulator is faster."""
        ratio = self.predicted / self.row.published
        return 1 / ratio - 1 if self.row.figure == "step" else ratio - 1


def rows(file: Path = FILE) -> list[Row]:
    """Every row of the file, checked."""
    found = []
    for source in yaml.safe_load(file.read_text("utf-8")):
        for given in source["rows"]:
            figure = next(figure for figure in FIGURES if figure in given)
            found.append(Row(source["source"], given["name"], given["gpus"], figure,
                             float(given[figure]), _topology(source, given),
                             not source.get("chosen_with", False)))
    return found


def _topology(source: dict[str, Any], row: dict[str, Any]) -> Topology:
    shape = {key: row[key] for key in SHAPE if key in row}
    own = {key: row[key] for key in ("sequence", "recompute", "precision") if key in row}
    workload = {"batch": row.get("batch", 1), "framework": "ddp"} | source["workload"] | own
    if "model" in row:
        workload["model"] = row["model"]
    elif shape:
        workload["model"] = source["model"] | shape
    local = min(row["gpus"], HOST)
    plain = {
        "name": "row", "fabric": {"template": "single-switch"},
        "hosts": [{"name": "h", "count": row["gpus"] // local,
                   "gpus": {"count": local} | source["gpus"],
                   "nvlink": {"rate": source["nvlink"], "latency": "3us"},
                   "nics": [{"name": "nic", "rate": source["nics"], "count": HOST}]}],
        "workload": workload,
        "scenarios": [{"name": "step", "stack": "rdma",
                       "parallel": _parallel(source, row)}]}
    split = Topology.model_validate(plain, context=PLAIN_VALUES).scenarios[0].layout.split
    workload["accumulation"] = -(-row["samples"] // (row["gpus"] // split * workload["batch"]))
    made = Topology.model_validate(plain, context=PLAIN_VALUES)
    for problem in check(made):
        raise problem
    return made


def _parallel(source: dict[str, Any], row: dict[str, Any]) -> str | dict[str, Any]:
    """How a row splits its model, with the overlaps of its source."""
    given: str | dict[str, Any] = row.get("parallel", source.get("parallel", "data"))
    if not source.get("overlaps", False) or given in ("data", "fsdp"):
        return given
    split: dict[str, Any] = {"shard": given} if isinstance(given, str) else dict(given)
    beside = {"pipeline_overlap": True} if split.get("interleave", 1) > 1 else {}
    return split | beside | {"tensor_overlap": split.get("sequence", False),
                             "gather_overlap": split.get("shard") in ("zero1", "zero2")}


def predict(row: Row) -> Scored:
    """Simulate one step of a row."""
    scenario = row.topology.scenarios[0]
    run = Run(Cluster(row.topology), scenario, row.gpus)
    (result,) = run.go()
    network, recipe = row.topology.workload.network, run.jobs[0].recipe
    done = network.forward_flops + sum(map(recipe.backward_flops, network.layers))
    said = {"tflops": result.images_per_s * done / row.gpus / 1e12, "mfu": result.mfu,
            "step": result.step_s, "tokens": result.tokens_per_s,
            "gpu_tokens": result.tokens_per_s}[row.figure]
    assert said is not None
    return Scored(row, said / row.gpus if row.figure == "gpu_tokens" else said)


def main() -> None:
    """Print all rows, by source."""
    scored = [predict(row) for row in rows()]
    for source in dict.fromkeys(each.row.source for each in scored):
        some = [each for each in scored if each.row.source == source]
        sys.stdout.write(f"{source}\n")
        for each in some:
            row = each.row
            sys.stdout.write(f"  {row.name:20} {row.gpus:>6} GPUs {row.published:>10.6g} published "
                             f"{each.predicted:>10.4g} predicted {each.error:>+7.1%} "
                             f" {FIGURES[row.figure]}\n")
        sys.stdout.write(f"  {len(some)} rows: median error {_median(some):.1%}\n")
    counted = [each for each in scored if each.row.counts]
    near = sum(abs(each.error) <= NEAR for each in counted)
    sys.stdout.write(
        f"{len(counted)} rows of {len({each.row.source for each in counted})} sources that no "
        f"default was chosen with: median error {_median(counted):.1%}, {near} within {NEAR:.0%}, "
        f"{sum(each.error > 0 for each in counted)} too fast\n")


def _median(scored: list[Scored]) -> float:
    return median(abs(each.error) for each in scored)


if __name__ == "__main__":
    main()
