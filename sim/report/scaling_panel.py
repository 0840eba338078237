"""The picture's last panel: images/s over GPUs, beside the ideal and the published figures.

Colours as in `sim.report.panels`; lines differ by marker as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.report.numbers import rate
from sim.report.panels import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    GRID,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    head,
    labels,
    literal,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from sim.results import ScenarioResult

LINES = ((BLUE, "o"), (VERMILION, "s"), (GREEN, "^"), (ORANGE, "v"), (PURPLE, "P"), (SKY, "X"),
         (BLACK, "<"), (GREY, ">"))


def height_inches(rows: Sequence[ScenarioResult]) -> float:
    """Return the height that the panel needs for ``rows``."""
    return 0.3 * len(rows) + 1.1 if _one_size(rows) else 4.0


def draw_scaling(axes: Axes, rows: Sequence[ScenarioResult]) -> None:
    """Draw images/s over GPUs, or as bars where every scenario has one and the same number."""
    if _one_size(rows):
        _rate_bars(axes, rows)
        return
    ideal = _ideal(axes, rows)
    lines = _curves(axes, rows)
    published = _published(axes, [(row.gpus, row.expect.images_per_s) for row in rows
                                  if row.expect is not None])
    _axes(axes, rows)
    # The legend lists the lines from top to bottom, as the eye finds them at the right end.
    lines.sort(key=lambda line: -float(np.asarray(line.get_ydata())[-1]))
    head(axes, "Scaling", [])
    axes.legend(handles=[*ideal, *lines, *published], loc="upper left",
                bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8.5)


def _one_size(rows: Sequence[ScenarioResult]) -> bool:
    return len({row.gpus for row in rows}) == 1


def _curves(axes: Axes, rows: Sequence[ScenarioResult]) -> list[Line2D]:
    curves: dict[tuple[str, str], list[ScenarioResult]] = {}
    for row in rows:
        curves.setdefault((row.name, row.job), []).append(row)
    lines: list[Line2D] = []
    for index, ((name, job), points) in enumerate(curves.items()):
        colour, marker = LINES[index % len(LINES)]
        points.sort(key=lambda row: row.gpus)
        for row in points:
            if row.interval is not None:
                axes.vlines(row.gpus, row.interval.low_images_per_s,
                            row.interval.high_images_per_s, color=colour, linewidth=5, alpha=0.4)
        lines += axes.plot([row.gpus for row in points], [row.images_per_s for row in points],
                           color=colour, marker=marker, markersize=5, linewidth=1.4,
                           linestyle="-" if index < len(LINES) else "--",
                           label=literal(f"{name} ({job})" if job else name))
    return lines


def _axes(axes: Axes, rows: Sequence[ScenarioResult]) -> None:
    gpus = sorted({row.gpus for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(gpus, [str(count) for count in gpus])
    axes.minorticks_off()
    rates = [row.images_per_s for row in rows]
    if min(rates) > 0 and max(rates) > 4 * min(rates):
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: rate(value))
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("GPUs", fontsize=8.5)
    axes.set_ylabel("images/s", fontsize=8.5)


def _ideal(axes: Axes, rows: Sequence[ScenarioResult]) -> list[Line2D]:
    """Draw the one-GPU rate times GPUs, unless rows (of different jobs) disagree about it."""
    ones = [row.images_per_s / row.gpus / row.efficiency for row in rows if row.efficiency]
    if not ones or max(ones) > 1.01 * min(ones):
        return []
    ends = [min(row.gpus for row in rows), max(row.gpus for row in rows)]
    return axes.plot(ends, [ones[0] * gpus for gpus in ends], color=GREY, linestyle=":",
                     linewidth=1.6, label="ideal")


def _published(axes: Axes, points: Sequence[tuple[float, float]]) -> list[Line2D]:
    if not points:
        return []
    x, y = zip(*sorted(set(points)), strict=True)
    return axes.plot(x, y, linestyle="none", marker="D", markersize=9, markerfacecolor="none",
                     markeredgecolor=BLACK, label="published")


def _rate_bars(axes: Axes, rows: Sequence[ScenarioResult]) -> None:
    axes.barh(range(len(rows)), [row.images_per_s for row in rows], color=SKY, height=0.6)
    for index, row in enumerate(rows):
        # At the bar's foot, where neither the bar's end nor a published point can lie over it.
        axes.annotate(rate(row.images_per_s), (0, index), xytext=(5, 0),
                      textcoords="offset points", va="center", fontsize=8.5)
    published = _published(axes, [(row.expect.images_per_s, index) for index, row in enumerate(rows)
                                  if row.expect is not None])
    axes.set_yticks(range(len(rows)), [literal(name) for name in labels(rows)])
    axes.invert_yaxis()
    axes.set_xlabel("images/s", fontsize=8.5)
    gpus = rows[0].gpus
    head(axes, f"Throughput with {gpus} GPU{'' if gpus == 1 else 's'}", published)
