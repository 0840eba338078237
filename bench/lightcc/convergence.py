"""Real training under DDP over LightCC: top-k against dense gradients.

Two ranks train a CNN on scikit-learn's digits and a transformer on the text of this repository's
pages (training.py), with three seeds each: dense, with the largest 1 % of gradients as float16, and
the same without error feedback. Rows are means over the seeds, of loss and accuracy on data that
were held back, beside those of dense training. docs/use/lightcc.md discusses them. Needs
scikit-learn and torch; no root.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.rows import Row, by_id
from bench.subject import BenchError, Subject

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.rows import Result

RANKS = 2
LIGHT = {"LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_RATIO": "0.01", "LIGHT_TOPK_FP16": "1",
         "LIGHT_TOPK_THRESHOLD": "4096"}
MODELS = ("CNN on digits", "transformer on text")
ARMS = ("dense", "top-k", "top-k without feedback")
WINDOW = 20
"""Steps over which the plot is smoothed."""


def measure(rows: Sequence[Row], share: float, seeds: str, picture: str | None) -> Iterator[Result]:
    """Train model after model, with a share of the steps."""
    del picture
    for model in dict.fromkeys(row.id.partition(": ")[0] for row in rows):
        found = train(model, share, [int(seed) for seed in seeds.split(",")])
        yield from (result(row, found) for row in rows if row.id.partition(": ")[0] == model)


def train(model: str, share: float, seeds: Sequence[int]) -> dict[str, list[dict[str, Any]]]:
    """Train a model by all arms, in processes of their own; give the runs by its name."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "found.json")
        task = json.dumps([str(file), share, seeds, [model]])
        ranks = [subprocess.Popen(
            [sys.executable, "-m", "bench.lightcc.training", task],
            env=os.environ | LIGHT | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                                      "RANK": str(rank), "WORLD_SIZE": str(RANKS)})
            for rank in range(RANKS)]
        codes = [rank.wait() for rank in ranks]
        if any(codes):
            raise BenchError("a rank failed")
        found: dict[str, list[dict[str, Any]]] = json.loads(file.read_text())
    return found


def result(row: Row, found: dict[str, list[dict[str, Any]]], base: str = ARMS[0]) -> Result:
    """Make a row of all runs, by model, beside those of the arm ``base``."""
    model, arm = row.id.split(": ")
    runs, dense = ([run for run in found[model] if run["arm"] == one] for one in (arm, base))
    return {"id": row.id, "value": _mean(runs, "loss"), "unit": "loss",
            "reference": _mean(dense, "loss"), "accuracy": _mean(runs, "accuracy"),
            "reference_accuracy": _mean(dense, "accuracy"), "runs": runs, "ok": True}


def _mean(runs: Sequence[dict[str, Any]], what: str) -> float:
    return float(statistics.mean(run[what] for run in runs))


def line(row: Result) -> str:
    """Write the means, and their distance from the reference's."""
    model, arm = row["id"].split(": ")
    points = 100 * (row["accuracy"] - row["reference_accuracy"])
    return (f"{model:20}  {arm:23} loss {row['value']:.4f} "
            f"{100 * (row['value'] / row['reference'] - 1):+5.1f} %"
            f"   accuracy {100 * row['accuracy']:.2f} % {points:+.2f} points")


def footer(rows: Sequence[Result]) -> str:
    """Name the seeds."""
    seeds = sorted({run["seed"] for row in rows for run in row["runs"]})
    return f"seeds {', '.join(map(str, seeds))}"


def draw(rows: Sequence[Result], picture: str | None, stride: int = 1, **_: object) -> None:
    """Draw the mean loss over the steps; a loss that was kept is of ``stride`` of them."""
    if picture is None:
        return
    import matplotlib as mpl
    mpl.use("Agg")
    import numpy as np
    from matplotlib import pyplot

    models = list(dict.fromkeys(row["id"].partition(": ")[0] for row in rows))
    figure, axes = pyplot.subplots(1, len(models), figsize=(10, 3.6), layout="constrained",
                                   squeeze=False)
    for row in rows:
        model, arm = row["id"].split(": ")
        place = axes[0][models.index(model)]
        mean = np.convolve(np.array([run["losses"] for run in row["runs"]]).mean(0),
                           np.full(WINDOW // stride, stride / WINDOW), "valid")
        place.plot(stride * np.arange(len(mean)) + WINDOW // 2, mean, label=arm, linewidth=1.4)
        place.set(title=model, xlabel="step", ylabel="training loss")
        place.grid(alpha=0.3)
    axes[0][0].legend()
    figure.savefig(picture, dpi=72, pil_kwargs={"optimize": True})


ROWS = by_id(Row(f"{model}: {arm}", f"loss and accuracy, {arm}", result, reference=ARMS[0])
             for model in MODELS for arm in ARMS)
SUBJECT = Subject(__doc__ or "", ROWS, measure, [
    click.Option(["--share"], type=float, default=1.0, show_default=True, help="Of the steps."),
    click.Option(["--seeds"], default="1,2,3", show_default=True, metavar="N,N"),
    click.Option(["--plot", "picture"], metavar="FILE", help="Draw the losses."),
], header="", line=line, footer=footer, finish=draw)
