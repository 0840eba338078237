"""Table and plot of a stored run of training: ``python bench/lightcc/curves.py FILE``.

It reads what bench/lightcc/convergence.py wrote; docs/lightcc.md shows both, of one run. ``--plot FILE``
draws the training losses, means over the seeds, smoothed over `WINDOW` steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

WINDOW = 20
ARMS = ("dense", "top-k", "top-k without feedback")


def summary(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Give means over the seeds, a row for each task and arm."""
    return [{"task": task, "arm": arm, **{
        what: statistics.mean(run[what] for run in runs if run["arm"] == arm)
        for what in ("loss", "accuracy")}} for task, runs in found.items() for arm in ARMS]


def table(found: dict[str, Any]) -> str:
    """Write the means, and how far they are from those of dense training."""
    lines, dense = [], {}
    for row in summary(found):
        if row["arm"] == ARMS[0]:
            dense = row
        loss = 100 * (row["loss"] / dense["loss"] - 1)
        points = 100 * (row["accuracy"] - dense["accuracy"])
        lines.append(f"{row['task']:20}  {row['arm']:23} loss {row['loss']:.4f} {loss:+5.1f} %"
                     f"   accuracy {100 * row['accuracy']:.2f} % {points:+.2f} points")
    seeds = sorted({run["seed"] for runs in found.values() for run in runs})
    return "\n".join([*lines, f"seeds {', '.join(map(str, seeds))}"])


def draw(found: dict[str, Any], file: str) -> None:
    """Draw the mean loss over the steps."""
    import matplotlib as mpl
    mpl.use("Agg")
    import numpy as np
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(found), figsize=(10, 3.6), layout="constrained")
    for place, (task, runs) in zip(axes, found.items(), strict=True):
        for arm in ARMS:
            curves = np.array([run["losses"] for run in runs if run["arm"] == arm])
            mean = np.convolve(curves.mean(0), np.full(WINDOW, 1 / WINDOW), "valid")
            place.plot(np.arange(len(mean)) + WINDOW // 2, mean, label=arm, linewidth=1.4)
        place.set(title=task, xlabel="step", ylabel="training loss")
        place.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(file, dpi=110)


def main() -> int:
    """Read the options."""
    parser = argparse.ArgumentParser(description="Table and plot of stored training runs.")
    parser.add_argument("found", metavar="FILE", help="what bench/lightcc/convergence.py --json wrote")
    parser.add_argument("--plot", metavar="FILE", help="draw the losses")
    options = parser.parse_args()
    found = json.loads(Path(options.found).read_text())
    print(table(found))
    if options.plot:
        draw(found, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
