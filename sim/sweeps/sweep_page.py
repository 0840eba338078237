"""A sweep as one HTML page: the Pareto front over its first two objectives, and all lines."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from harp.html_page.tables_page import Part, tables_html
from sim.report.panels import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, YELLOW
from sim.sweeps.result_table import objective_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.sweeps.result_table import SweepTable

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW, GREY)
AFTER_KEYS = ("scenario", "gpus", "images_per_s", "step_ms", "efficiency", "p10_images_per_s",
              "p90_images_per_s", "bottleneck", "cost_step")
"""Columns that follow a sweep's keys on the page; empty ones are left out."""


def sweep_html(table: SweepTable, title: str, command: str) -> str:
    """Text of the page."""
    names = list(table.columns)
    keys = [name for name in names[1:names.index("scenario")] if not name.endswith(" in SI")]
    shown = [*keys, *(name for name in AFTER_KEYS if name not in keys and any(
        cell is not None for cell in table.columns[name]))]
    if table.failed:
        shown.append("error")
    parts = [Part("All points", shown, _rows(table, shown), texts=len(keys) + 1)]
    count = len(set(table.columns["point"]))
    says = f"{count:,} points."
    if table.valueless:
        says += f" There is no Pareto front, since no line has {' or '.join(table.valueless)}."
    elif len(table.objectives) >= 2:
        aims = ", ".join(f"{name} ({aim})" for name, aim in table.objectives.items())
        parts.insert(0, Part(
            "Pareto front", shown, _rows(table, shown, front=True), chart=_chart(table),
            says=f"Every point by its first two objectives, of {aims}; the line joins those that "
                 "no other beats in all.", texts=len(keys) + 1))
    return tables_html(title, says, parts, command)


def _rows(table: SweepTable, shown: Sequence[str], *, front: bool = False) -> list[list[str]]:
    return [[_cell(line[name]) for name in shown] for line in table.lines(pareto=front)]


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _chart(table: SweepTable) -> dict[str, Any]:
    across, up = list(table.objectives)[:2]
    x, y = (objective_values(table.columns, name) for name in (across, up))
    scenarios = table.columns["scenario"]
    placed = [(place, name, front) for *place, name, front in
              zip(x, y, scenarios, table.columns["pareto"], strict=True)
              if name is not None and isfinite(place[0]) and isfinite(place[1])]
    series: list[dict[str, Any]] = [
        {"type": "scatter", "name": name, "symbolSize": 8,
         "color": COLOURS[number % len(COLOURS)],
         "data": [place for place, one, _ in placed if one == name]}
        for number, name in enumerate(dict.fromkeys(name for _, name, _ in placed))]
    series.append({"type": "line", "name": "Pareto front", "color": GREY, "symbol": "none",
                   "data": sorted(place for place, _, front in placed if front)})
    axes = [{"type": "value", "name": f"{name} ({table.objectives[name]})", "scale": True,
             "nameLocation": "middle", "nameGap": gap} for name, gap in ((across, 28), (up, 56))]
    return {"xAxis": axes[0], "yAxis": axes[1], "series": series,
            "legend": {"top": 0, "type": "scroll"}, "tooltip": {"confine": True},
            "grid": {"left": 80, "right": 28, "top": 40, "bottom": 50}}
