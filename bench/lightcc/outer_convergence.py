"""Loss by rare meetings: DiLoCo, streaming DiLoCo and SparseLoCo beside DDP.

Four ranks over LightCC, each an island, train the models of small_models.py by AdamW: as many steps
and data with each method as DDP has, which averages gradients in each step. Islands meet every
`EVERY` steps; all else are the defaults of `harp.lightcc.outer`, which are the papers'. The
learning rate falls to zero by a cosine. Rows are means over seeds, of loss and accuracy on data
that were held back, beside those of DDP. docs/use/outer.md discusses them. Needs scikit-learn and
torch; no root.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from bench.arms import ROOT
from bench.lightcc.convergence import draw, footer, line, result
from bench.lightcc.lightcc_rows import Ranks, module
from bench.rows import Row, by_id
from bench.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.rows import Result

ISLANDS = 4
EVERY = 15
PATIENCE_S = 3600.0
STRIDE = 10
"""Steps of a point of the plot, which shows their mean loss."""
BASE = "DDP"
WAYS = {BASE: "lightcc", "DiLoCo": "DiLoCo", "streaming DiLoCo": "streaming DiLoCo",
        "SparseLoCo": "SparseLoCo", "SparseLoCo, no feedback": "SparseLoCo without feedback"}
"""By arm: as outer_rank.py calls it."""
TRAINING = {"CNN on digits": (1600, 1e-3), "transformer on text": (1200, 1e-3)}
"""By model: steps, and the highest learning rate."""


@contextmanager
def islands() -> Iterator[Ranks]:
    """Start the ranks on this host, and end them."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    given = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                          "WORLD_SIZE": str(ISLANDS), "OMP_NUM_THREADS": "1"}
    processes = [subprocess.Popen(
        [sys.executable, "-W", "ignore", *module("outer_rank")], env=given | {"RANK": str(rank)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        for rank in range(ISLANDS)]
    try:
        yield Ranks(processes)
    finally:
        for process in processes:
            process.kill()


def train(ranks: Ranks, model: str, arm: str, seed: int, share: float) -> dict[str, Any]:
    """Train a share of the steps."""
    steps, rate = TRAINING[model]
    steps = max(EVERY, round(steps * share))
    answer = ranks.ask(do="train_until", way=WAYS[arm], task={"name": model}, seed=seed,
                       steps=steps, rate=rate, judge_every=steps, falls=True,
                       outer=None if arm == BASE else {"every": EVERY}, patience_s=PATIENCE_S)[0]
    losses = [round(statistics.mean(answer["losses"][first:first + STRIDE]), 4)
              for first in range(0, steps, STRIDE)]
    return {"arm": arm, "seed": seed, "losses": losses, "loss": answer["loss"],
            "accuracy": answer["accuracy"]}


def measure(rows: Sequence[Row], share: float, seeds: str, picture: str | None) -> Iterator[Result]:
    """Train row by row, and DDP for each model that is asked for."""
    del picture
    chosen = [int(seed) for seed in seeds.split(",")]
    found: dict[str, list[dict[str, Any]]] = {}
    with islands() as ranks:
        for row in rows:
            model, arm = row.id.split(": ")
            runs = found.setdefault(model, [])
            for one in dict.fromkeys((BASE, arm)):
                if not any(run["arm"] == one for run in runs):
                    runs.extend(train(ranks, model, one, seed, share) for seed in chosen)
            yield result(row, found, BASE)


ROWS = by_id(Row(f"{model}: {arm}", f"loss and accuracy, {arm}", result, reference=BASE)
             for model in TRAINING for arm in WAYS)
SUBJECT = Subject(__doc__ or "", ROWS, measure, [
    click.Option(["--share"], type=float, default=1.0, show_default=True, help="Of the steps."),
    click.Option(["--seeds"], default="1,2,3", show_default=True, metavar="N,N"),
    click.Option(["--plot", "picture"], metavar="FILE", help="Draw the losses."),
], header="", line=line, footer=footer, finish=partial(draw, stride=STRIDE))
