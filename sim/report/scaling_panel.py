"""The picture's last panel: images/s over GPUs, beside the ideal and the published figures.

A few scenarios are lines over the number of GPUs; lines differ by marker as well as by colour
(those of `sim.report.panels`). Many, or many that have one number of GPUs only, are bars with their
names beside them: more lines than colours cannot be told apart.
"""

from __future__ import annotations

from collections import Counter
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

    from sim.records.results import ScenarioResult

MOST_LINES = 6
"""With more scenarios than these, the panel has bars."""
MOST_BARS = 48
"""With more rows than these, only each scenario's largest number of GPUs gets a bar."""
LINES = ((BLUE, "o"), (VERMILION, "s"), (GREEN, "^"), (ORANGE, "v"), (PURPLE, "P"), (BLACK, "<"))


def height_inches(rows: Sequence[ScenarioResult]) -> float:
    """Return the height that the panel needs for ``rows``."""
    return 4.0 if _has_curves(rows) else 0.3 * len(_barred(rows)) + 1.1


def draw_scaling(axes: Axes, rows: Sequence[ScenarioResult]) -> None:
    """Draw images/s over GPUs as lines, or as bars where lines would show little."""
    if not _has_curves(rows):
        _rate_bars(axes, _barred(rows))
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


def _has_curves(rows: Sequence[ScenarioResult]) -> bool:
    """Whether there are few scenarios, and more than half of them have several numbers of GPUs."""
    points = Counter((row.name, row.job) for row in rows)
    several = sum(count > 1 for count in points.values())
    return len(points) <= MOST_LINES and 2 * several > len(points)


def _barred(rows: Sequence[ScenarioResult]) -> Sequence[ScenarioResult]:
    """Choose the rows that get a bar."""
    if len(rows) <= MOST_BARS:
        return rows
    largest: dict[tuple[str, str], ScenarioResult] = {}
    for row in sorted(rows, key=lambda row: row.gpus):
        largest[row.name, row.job] = row
    return [row for row in rows if largest[row.name, row.job] is row]


def _curves(axes: Axes, rows: Sequence[ScenarioResult]) -> list[Line2D]:
    curves: dict[tuple[str, str], list[ScenarioResult]] = {}
    for row in rows:
        curves.setdefault((row.name, row.job), []).append(row)
    lines: list[Line2D] = []
    for index, ((name, job), points) in enumerate(curves.items()):
        colour, marker = LINES[index]
        points.sort(key=lambda row: row.gpus)
        for row in points:
            if row.interval is not None:
                axes.vlines(row.gpus, row.interval.low_images_per_s,
                            row.interval.high_images_per_s, color=colour, linewidth=5, alpha=0.4)
        lines += axes.plot([row.gpus for row in points], [row.images_per_s for row in points],
                           color=colour, marker=marker, markersize=5, linewidth=1.4,
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
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    axes.barh(range(len(rows)), [row.images_per_s for row in rows], color=SKY, height=0.6)
    for index, row in enumerate(rows):
        if row.interval is not None:
            axes.barh(index + 0.24, row.interval.high_images_per_s - row.interval.low_images_per_s,
                      left=row.interval.low_images_per_s, color=BLUE, height=0.12)
        if row.efficiency:
            axes.vlines(row.images_per_s / row.efficiency, index - 0.36, index + 0.36, color=GREY,
                        linewidth=1.6)
        # At the bar's foot, where neither the bar's end nor a published point can lie over it.
        axes.annotate(rate(row.images_per_s), (0, index), xytext=(5, 0),
                      textcoords="offset points", va="center", fontsize=8.5)
    published = _published(axes, [(row.expect.images_per_s, index) for index, row in enumerate(rows)
                                  if row.expect is not None])
    axes.set_yticks(range(len(rows)), [literal(name) for name in labels(rows)])
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xlabel("images/s", fontsize=8.5)
    legend = [Patch(color=SKY, label="simulated")]
    if any(row.interval for row in rows):
        legend.append(Patch(color=BLUE, label="P10 to P90"))
    if any(row.efficiency for row in rows):
        legend.append(Line2D([], [], color=GREY, linewidth=1.6, label="ideal"))  # type: ignore[arg-type]
    sizes = {row.gpus for row in rows}
    gpus = f" with {min(sizes)} GPU{'' if sizes == {1} else 's'}" if len(sizes) == 1 else ""
    head(axes, f"Throughput{gpus}", [*legend, *published])
