"""Costs of each row: a step, a day, and the whole training that the file prices.

P10 and P90 are those of the whole: its hosts are paid for as long as it takes. Where published
losses say how much longer a row trains to the same loss, that stands behind, with P10 and P90 where
there is room.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sim.report.answer_table import name_columns, section_ends
from sim.report.numbers import DAY_S, rate, rate_unit
from sim.report.screen import Column, console_for, fit, grid, show, text_column

if TYPE_CHECKING:
    from rich.console import Console

    from sim.records.results import Cost, Report, ScenarioResult


def print_costs(report: Report, *, console: Console | None = None) -> None:
    """Print the table, if the file has prices."""
    columns = cost_columns(report)
    if columns:
        console = console_for() if console is None else console
        rows = [row for row in report.scenarios if row.cost is not None]
        show(console, grid(fit(columns, console.width), section_ends(rows)))


def cost_columns(report: Report) -> list[Column]:
    """Return the table's columns, none where the file has no prices."""
    rows = [row for row in report.scenarios if row.cost is not None]
    if not rows:
        return []
    costs = [row.cost for row in rows if row.cost is not None]
    unit, goal = costs[0].currency, costs[0].goal
    columns = [
        *name_columns(rows),
        text_column(rate_unit(rows), (rate(row.images_per_s) for row in rows), drop=2),
        text_column(f"{unit}\na step", (f"{cost.of(row.step_s):.3g}" if math.isfinite(row.step_s)
                                        else "-" for row, cost in zip(rows, costs, strict=True)),
                    drop=1),
        text_column(f"{unit}\na day", (money(cost.day) for cost in costs)),
    ]
    if goal:
        whole = [row.whole_s for row in rows]
        columns += [text_column(f"days to\n{goal}", (_days(times[0]) for times in whole))]
        columns += [Column(f"{unit}\n{name}", text_column("", (
            _spent(cost, times, place) for cost, times in zip(costs, whole, strict=True))).cells)
            for name, place in (("for it", 0), ("P10", 1), ("P90", 2))]
        columns += _to_the_same_loss(rows)
    return columns


def _to_the_same_loss(rows: list[ScenarioResult]) -> list[Column]:
    """Days and money to the loss that averaging has after the goal, if one takes more or less.

    A cell is blank where no published loss says it.
    """
    costs = [row.cost for row in rows if row.cost is not None]
    if all(cost.same_loss in (None, 1.0) for cost in costs):
        return []
    known = [row.same_loss_s for row in rows]
    spent = (_spent(cost, times, 0) if times else "" for cost, times in zip(costs, known,
                                                                            strict=True))
    return [*(text_column(name, (_days(times[place]) if place < len(times) else ""
                                 for times in known), drop=drop)
              for place, (name, drop) in enumerate(
                  (("days to\nsame loss", 0), ("days\nP10", 3), ("days\nP90", 3)))),
            text_column(f"{costs[0].currency}\nfor it", spent)]


def money(value: float) -> str:
    """Money for people: whole from 100 up, three significant digits below."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def _days(seconds: float) -> str:
    return rate(seconds / DAY_S) if math.isfinite(seconds) else "-"


def _spent(cost: Cost, times: tuple[float, ...], place: int) -> str:
    if place >= len(times) or not math.isfinite(times[place]):
        return "" if place else "-"
    return money(cost.of(times[place]))
