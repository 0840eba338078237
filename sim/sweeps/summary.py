"""Summary of a sweep: its best lines, and the number of points that the simulator refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim.report.numbers import rate
from sim.report.screen import fit, grid, show, text_column
from sim.sweeps.result_table import idle_keys

if TYPE_CHECKING:
    from rich.console import Console

    from sim.sweeps.result_table import SweepTable

MOST_LINES = 12


def print_summary(table: SweepTable, points: int, *, console: Console) -> None:
    """Print the Pareto front, or the fastest lines where there are no objectives."""
    from rich.text import Text

    front = table.lines(pareto=True)
    lines = front or [line for line in table.lines() if line["images_per_s"] is not None]
    lines = sorted(lines, key=lambda line: -(line["images_per_s"] or 0.0))
    what = "Pareto front" if front else "fastest"
    if lines:
        show(console, Text(f"{what}, {min(len(lines), MOST_LINES)} of {len(lines)} lines",
                           style="bold"))
        show(console, grid(fit(_columns(table, lines[:MOST_LINES]), console.width)))
    show(console, Text(f"{points:,} points, {len(table.columns['point']):,} lines", style="dim"))
    if table.valueless:
        show(console, Text(f"No Pareto front: no line has {' or '.join(table.valueless)}",
                           style="dim"))
    idle = idle_keys(table)
    if idle:
        show(console, Text(f"No value changed a line: {', '.join(idle)}", style="dim"))
    refused = [error for error in table.columns["error"] if error is not None]
    if refused:
        count = "1 point was" if len(refused) == 1 else f"{len(refused):,} points were"
        show(console, Text(f"{count} refused (column error), e.g. {refused[0]}", style="dim"))


def _columns(table: SweepTable, lines: list[dict[str, Any]]) -> list[Any]:
    names = list(table.columns)
    keys = [name for name in names[1:names.index("scenario")] if not name.endswith(" in SI")]
    unit = "samples/s" if any(line["tokens_per_s"] for line in lines) else "images/s"
    return [
        text_column("point", [str(line["point"]) for line in lines]),
        text_column("scenario", [line["scenario"] or "" for line in lines], align="left",
                    folds=True),
        *(text_column(key.replace(".", ".\n"),
                      ["" if line[key] is None else str(line[key]) for line in lines],
                      drop=2 + number) for number, key in enumerate(keys)),
        text_column(unit, [rate(line["images_per_s"] or 0.0) for line in lines]),
        text_column("limited by", [line["bottleneck"] or "" for line in lines], drop=1,
                    align="left"),
    ]
