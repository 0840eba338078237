"""What each row's interval is due to (``--why``): a tornado, the widest cause first.

Each parameter goes to its own P10 and P90 while all others stay at their values, so images/s at
both ends lie around the answer of the table. Bars have one scale for the whole table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.report.numbers import percent, rate
from sim.report.quantities import quantity
from sim.report.screen import BAR_WIDTH, Column, console_for, fit, grid, show
from sim.report.table import name_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from sim.records.results import Cause, Report, ScenarioResult

MOST_CAUSES = 5
"""Causes that are shown of each row."""
ORIGINS = "Each parameter has the name of the set that gives it: what ddp inherits is horovod's."


def print_causes(report: Report, *, console: Console | None = None) -> None:
    """Print one line a cause, by default on standard output."""
    from rich.text import Text

    rows = [row for row in report.scenarios if row.causes]
    console = console_for() if console is None else console
    if not rows:
        show(console, Text("Nothing that is known within bounds moves any row.", style="dim"))
        return
    lines = [(row, cause) for row in rows for cause in row.causes[:MOST_CAUSES]]
    ends = [number for number, (row, _) in enumerate(lines[:-1]) if lines[number + 1][0] is not row]
    show(console, grid(fit(_columns(lines, plain=console.options.ascii_only), console.width), ends))
    show(console, Text(ORIGINS, style="dim"))


def _columns(lines: Sequence[tuple[ScenarioResult, Cause]], *, plain: bool) -> list[Column]:
    from rich.text import Text

    first = [number == 0 or lines[number - 1][0] is not row
             for number, (row, _) in enumerate(lines)]
    names = [Column(column.header, [cell if shown else Text("")
                                    for cell, shown in zip(column.cells, first, strict=True)],
                    align=column.align, folds=column.folds)
             for column in name_columns([row for row, _ in lines])]
    widest = max(cause.width / row.images_per_s for row, cause in lines)
    return [
        *names,
        Column("due to", [Text(cause.parameter) for _, cause in lines], align="left"),
        Column("from", [Text(_value(cause, cause.low)) for _, cause in lines], drop=1),
        Column("to", [Text(_value(cause, cause.high)) for _, cause in lines], drop=1),
        Column("images/s\nfrom", [Text(rate(cause.at_low)) for _, cause in lines]),
        Column("images/s\nto", [Text(rate(cause.at_high)) for _, cause in lines]),
        Column("width", [Text(percent(cause.width / row.images_per_s)) for row, cause in lines]),
        Column("", [Text(("#" if plain else "█") * max(1, round(
            BAR_WIDTH * cause.width / row.images_per_s / widest)), style="blue")
            for row, cause in lines], align="left", drop=2),
    ]


def _value(cause: Cause, value: float | None) -> str:
    return "" if value is None else quantity(cause.parameter, float(f"{value:.3g}"))
