"""Show the joint fit to published measurements: its parameters, and each row left out."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from sim.calibration.published import STACK
from sim.report.numbers import percent, rounded
from sim.report.quantities import quantity
from sim.report.screen import Column, console_for, grid, show
from sim.validation.predict import in_words, size_in_words

if TYPE_CHECKING:
    from rich.console import Console

    from sim.calibration.published import FittedRow, PublishedFit

VERSION = 1


def print_fit(fit: PublishedFit, console: Console | None = None) -> None:
    """Print a line for each parameter, then one for each row, then the medians."""
    from rich.text import Text

    console = console_for() if console is None else console

    def column(header: str, cells: list[str], **more: Any) -> Column:
        return Column(header, [Text(cell) for cell in cells], **more)

    figures, rows = fit.parameters, fit.rows
    show(console, grid([
        column("parameter", [f"{STACK}.{each.name}" for each in figures], align="left"),
        column("shipped", [_short(each.name, each.shipped) for each in figures]),
        column("fitted", [_short(each.name, each.value) for each in figures]),
        column("interval", [f"{_short(each.name, each.low)}..{_short(each.name, each.high)}"
                            for each in figures]),
    ]))
    if fit.deviation is not None:
        show(console, Text(f"{STACK}.deviation: 1, within {1 / fit.deviation.value:.2f} to "
                           f"{fit.deviation.value:.2f} (shipped: {fit.deviation.shipped:.2f})."))
    show(console, grid([
        column("case", [row.row.case for row in rows], align="left"),
        column("row", [_words(row) for row in rows], align="left"),
        column("measured", [in_words(row.row.figure, row.row.figure.value) for row in rows]),
        column("fitted", [in_words(row.row.figure, row.fitted) for row in rows]),
        column("error", [percent(row.error, sign=True) for row in rows]),
        column("left out", [in_words(row.row.figure, row.left_out) for row in rows]),
        column("error", [percent(row.left_out_error, sign=True) for row in rows]),
    ]))
    sources = len({row.row.source for row in rows})
    show(console, Text(
        f"{len(rows)} rows of {sources} sources: median error "
        f"{_median(row.error for row in rows)}, "
        f"without the row's source {_median(row.left_out_error for row in rows)}."))


def _words(row: FittedRow) -> str:
    size = row.row.figure.size
    return f"{row.row.figure.scenario}, {size_in_words(size)}" if size else row.row.figure.scenario


def _median(errors: Any) -> str:
    return percent(median(abs(error) for error in errors), decimals=1)


def _short(name: str, value: float) -> str:
    return quantity(name, float(f"{value:.3g}"))


def fit_json(fit: PublishedFit) -> dict[str, Any]:
    """Return plain data for ``--json``; docs/calibrate.md lists every key."""
    return {
        "version": VERSION,
        "stack": STACK,
        "parameters": [{
            "name": each.name, "shipped": rounded(each.shipped), "fitted": rounded(each.value),
            "low": rounded(each.low), "high": rounded(each.high), "stale": each.stale,
        } for each in fit.parameters],
        "deviation": None if fit.deviation is None else {
            "shipped": rounded(fit.deviation.shipped), "fitted": rounded(fit.deviation.value),
            "stale": fit.deviation.stale},
        "rows": [{
            "case": row.row.case, "scenario": row.row.figure.scenario, "source": row.row.source,
            "size": row.row.figure.size, "measured": rounded(row.row.figure.value),
            "fitted": rounded(row.fitted), "error_pct": rounded(row.error * 100),
            "left_out": rounded(row.left_out), "left_out_pct": rounded(row.left_out_error * 100),
        } for row in fit.rows],
    }
