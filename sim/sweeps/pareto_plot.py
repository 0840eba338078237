"""The first two objectives of a sweep as a picture, with the Pareto front as a line."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sim.report.panels import (
    BLUE,
    GREEN,
    GREY,
    GRID,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    YELLOW,
    literal,
)
from sim.report.plot import DATELESS
from sim.sweeps.result_table import objective_values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sim.sweeps.result_table import SweepTable

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW, GREY)


def pareto_plot(table: SweepTable, target: str, title: str) -> bytes:
    """Bytes of the picture in the format that ``target`` ends in."""
    import matplotlib as mpl

    suffix = Path(target).suffix.lower()
    picture = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "harp"}):
        pareto_figure(table, title).savefig(picture, format=suffix[1:], dpi=150,
                                            metadata=DATELESS[suffix])
    return picture.getvalue()


def pareto_figure(table: SweepTable, title: str) -> Figure:
    """A point for each line of the table, in the colour of its scenario, and the front."""
    from matplotlib.figure import Figure

    across, up = list(table.objectives)[:2]
    x, y = (np.array(objective_values(table.columns, name)) for name in (across, up))
    front = np.array(table.columns["pareto"])
    scenarios = table.columns["scenario"]
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for number, name in enumerate(dict.fromkeys(one for one in scenarios if one is not None)):
        its = np.array([one == name for one in scenarios])
        axes.scatter(x[its], y[its], s=14, color=COLOURS[number % len(COLOURS)],
                     label=literal(name))
    order = np.argsort(x[front], kind="stable")
    axes.plot(x[front][order], y[front][order], color="black", linewidth=1, marker="o",
              markerfacecolor="none", label="Pareto front")
    for axis, name in ((axes.set_xlabel, across), (axes.set_ylabel, up)):
        axis(literal(f"{name} ({table.objectives[name]})"))
    axes.set_title(literal(title), loc="left", fontsize=11)
    axes.grid(color=GRID)
    axes.set_axisbelow(True)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure
