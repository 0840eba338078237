"""The answer as one picture: timelines, utilisation, the scaling curve, and causes of intervals.

`report_plot` returns the bytes of a PNG, SVG or PDF, chosen by the target's suffix. The same report
gives the same bytes. Nothing of matplotlib's global state is kept changed.
"""

from __future__ import annotations

import io
import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from sim.records.results import Report, ScenarioResult

    Panel = tuple[float, Callable[[Axes], None]]

SUFFIXES = (".png", ".svg", ".pdf")
MOST_TIMELINES = 12
"""With more rows than these, only each scenario's largest number of GPUs gets a timeline."""

_WIDTH_INCHES = 11.0
DATELESS: dict[str, dict[str, Any]] = {
    ".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def report_plot(report: Report, target: str) -> bytes:
    """Return the picture of ``report`` in the format that ``target`` ends in (see `SUFFIXES`)."""
    import matplotlib as mpl

    suffix = Path(target).suffix.lower()
    picture = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "harp"}), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; that is no reason to complain.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure(report).savefig(picture, format=suffix[1:], dpi=150, metadata=DATELESS[suffix])
    return picture.getvalue()


def figure(report: Report) -> Figure:
    """Return the matplotlib figure; panels for which ``report`` has no data are left out."""
    from sim.report import panels

    rows = [row for row in report.scenarios
            if math.isfinite(row.step_s) and math.isfinite(row.images_per_s)]
    timed = timelines(rows)
    note = selection_note(rows, timed)
    loads = panels.busiest(timed)
    horizon_s = max((row.shown_s for row in timed), default=0.0)
    # Heights in inches: so much for each line, and the rest for title, legend and axis.
    over_time: list[Panel] = []
    if timed:
        over_time.append((0.36 * len(timed) + 1.1,
                          lambda axes: panels.draw_timelines(axes, timed, horizon_s, note)))
    if loads:
        over_time.append((0.21 * len(loads) + 1.1,
                          lambda axes: panels.draw_loads(axes, loads, horizon_s, note)))
    rates: list[Panel] = []
    if rows:
        rates.append((panels.scaling_height_inches(rows),
                      lambda axes: panels.draw_scaling(axes, rows)))
    due = panels.chosen_causes(rows)
    if due:
        rates.append((panels.tornado_height_inches(due),
                      lambda axes: panels.draw_tornado(axes, due)))
    # Panels over time share one left margin, so that their time axes line up.
    return _stack(report.topology, [group for group in (over_time, rates) if group])


def _stack(title: str, groups: Sequence[Sequence[Panel]]) -> Figure:
    """Draw groups of panels below each other; the panels of one group share their margins."""
    from matplotlib.figure import Figure

    from sim.report.panels import literal

    heights = [sum(height for height, _ in group) for group in groups] or [1.0]
    result = Figure(figsize=(_WIDTH_INCHES, sum(heights) + 0.5), layout="constrained")
    result.suptitle(literal(title), x=0.01, ha="left", fontsize=14, fontweight="bold")
    parts = result.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)
    for part, group in zip(parts[:, 0], groups, strict=False):
        grid = part.add_gridspec(len(group), 1, height_ratios=[height for height, _ in group])
        for index, (_, draw) in enumerate(group):
            axes = part.add_subplot(grid[index])
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=8.5, length=3)
            draw(axes)
    _settle(result, parts[:, 0])
    return result


def _settle(drawing: Figure, parts: Iterable[SubFigure]) -> None:
    """Lay the page out once, on a grid: the layout's solver differs in the last bits each time."""
    from matplotlib.transforms import Bbox

    drawing.draw_without_rendering()
    drawing.set_layout_engine("none")
    for part in parts:
        # Adding 0.0 turns -0.0, which SVG and PDF would show, into 0.0.
        part.bbox_relative.set_points(part.bbox_relative.get_points().round(4) + 0.0)
        for axes in part.axes:
            axes.set_position(Bbox(axes.get_position().get_points().round(4)))


def timelines(rows: Sequence[ScenarioResult]) -> list[ScenarioResult]:
    """Choose the rows that get a timeline, those with the most GPUs first."""
    timed = sorted((row for row in rows if row.spans), key=lambda row: -row.gpus)
    if len(timed) > MOST_TIMELINES:
        largest: dict[tuple[str, str], ScenarioResult] = {}
        for row in timed:
            largest.setdefault((row.name, row.job), row)
        timed = list(largest.values())[:MOST_TIMELINES]
    return timed


def selection_note(rows: Sequence[ScenarioResult], timed: Sequence[ScenarioResult]) -> str:
    """Say which part of the rows has a timeline, and how to ask for others; "" where all have."""
    total = sum(bool(row.spans) for row in rows)
    return "" if len(timed) == total else f"{len(timed)} of {total} rows; see --scenario"
