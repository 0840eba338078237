"""The picture's panel of causes: how far each parameter alone moves a row, the widest on top."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.report.numbers import rate
from sim.report.panels import BLACK, GRID, SKY, VERMILION, head, labels, literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from sim.records.results import Cause, ScenarioResult

    Chosen = list[tuple[str, ScenarioResult, tuple[Cause, ...]]]

MOST_ROWS = 8
"""Rows that are shown, those with the widest causes."""
MOST_CAUSES = 3
"""Causes of each."""


def chosen(rows: Sequence[ScenarioResult]) -> Chosen:
    """Choose rows and causes, in the order of the table; none where no row has causes."""
    known = [row for row in rows if row.causes]
    widest = sorted(known, key=lambda row: -row.causes[0].width / row.images_per_s)[:MOST_ROWS]
    return [(name, row, row.causes[:MOST_CAUSES]) for name, row in zip(labels(known), known,
                                                                       strict=True)
            if any(row is each for each in widest)]


def height_inches(due: Chosen) -> float:
    """Return the height that the panel needs."""
    return 0.2 * sum(len(causes) + 0.6 for _, _, causes in due) + 1.1


def draw_tornado(axes: Axes, due: Chosen) -> None:
    """Draw a bar from the parameter's P10 to its P90, in per cent of the row's answer."""
    from matplotlib.patches import Patch

    place, places, names = 0.0, [], []
    for name, row, causes in due:
        for number, cause in enumerate(causes):
            low, high = (100 * (each / row.images_per_s - 1) for each in (cause.at_low,
                                                                        cause.at_high))
            axes.barh(place, low, color=SKY, height=0.8)
            axes.barh(place, high, color=VERMILION, height=0.8)
            places.append(place)
            names.append(literal(f"{name}: {cause.parameter}" if number == 0
                                 else cause.parameter))
            axes.annotate(f"{rate(cause.at_low)} to {rate(cause.at_high)}",
                          (max(low, high, 0), place), xytext=(4, 0), textcoords="offset points",
                          va="center", fontsize=7)
            place += 1.0
        place += 0.6
    axes.axvline(0, color=BLACK, linewidth=0.8)
    axes.set_yticks(places, names)
    axes.set_ylim(place - 0.5, -0.9)
    axes.margins(x=0.12)
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("% of the row's images/s", fontsize=8.5)
    head(axes, "What the intervals are due to", [Patch(color=SKY, label="parameter at its P10"),
                                                 Patch(color=VERMILION, label="at its P90")])
