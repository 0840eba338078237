"""Where each step's time goes (``--explain``): five parts that add up, and the critical path.

Parts are printed so that the printed milliseconds add up to the printed step and the percentages to
100. Bars have one scale for the whole table, so that their lengths compare.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sim.report.numbers import apportion, milliseconds_decimals, percent, shown_ms
from sim.report.screen import BAR_WIDTH, Column, console_for, fit, grid, show
from sim.report.table import name_columns, section_ends

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.text import Text

    from sim.records.results import Breakdown, Report, ScenarioResult

# Header, glyph in the bar (plain ASCII, and block characters where those print), colour.
PARTS = (
    ("compute", "#", "█", "blue"),
    ("exposed\ntransfer", "=", "▒", "red"),
    ("selection", "s", "▓", "yellow"),
    ("latency", "l", "░", "magenta"),
    ("per\nmessage", "m", "▚", "cyan"),
)
PATH = ("bottleneck", "runner-up", "then", "then", "then")
"""Columns of the critical path."""
_BARS = "where the step goes"


def parts_s(breakdown: Breakdown) -> tuple[float, ...]:
    """Return the five parts of a step in seconds, in the order of `PARTS`."""
    return (breakdown.compute_s, breakdown.exposed_transfer_s, breakdown.selection_s,
            breakdown.latency_s, breakdown.message_s)


def print_explanation(report: Report, *, console: Console | None = None) -> None:
    """Print the table of parts, by default on standard output."""
    if not report.scenarios:
        return
    console = console_for() if console is None else console
    plain = console.options.ascii_only
    columns = fit([*_columns(report.scenarios, 1 if plain else 2), _bars(report.scenarios, plain)],
                  console.width)
    if columns[-1].header != _BARS:  # No room for bars, so no need of their glyphs.
        columns = fit(_columns(report.scenarios, None), console.width)
    show(console, grid(columns, section_ends(report.scenarios)))
    columns = fit(_path_columns(report.scenarios), console.width)
    show(console, grid(columns, section_ends(report.scenarios)))


def _path_columns(rows: Sequence[ScenarioResult]) -> list[Column]:
    """What the step waits for: the longest parts of its critical path, in shares of the step."""
    from rich.text import Text

    def text(row: ScenarioResult, number: int) -> Text:
        if number >= len(row.limits) or not row.limits[number].seconds >= 5e-4 * row.step_s:
            return Text()
        limit = row.limits[number]
        return Text(f"{percent(limit.seconds / row.step_s, decimals=1):>7} {limit.name}")

    return [*name_columns(rows), *(
        Column(header, [text(row, number) for row in rows], align="left", drop=number)
        for number, header in enumerate(PATH))]


def _columns(rows: Sequence[ScenarioResult], glyph: int | None) -> list[Column]:
    from rich.text import Text

    decimals = milliseconds_decimals(min(row.step_s for row in rows))
    parts = [shown_ms(row.step_s, row.breakdown.compute_s, parts_s(row.breakdown)[1:], decimals)
             for row in rows]
    shares = [apportion(parts_s(row.breakdown), 100) for row in rows]
    columns = [*name_columns(rows),
               Column("step\nms", [Text(part[0]) for part in parts])]
    for index, part in enumerate(PARTS):
        unit = "ms" if glyph is None else f"{part[glyph]} ms"
        columns += [Column(f"{part[0]}\n{unit}", [Text(shown[index + 1]) for shown in parts]),
                    Column("%", [Text(f"{share[index]}") for share in shares], drop=1)]
    return columns


def _bars(rows: Sequence[ScenarioResult], plain: bool) -> Column:
    longest = max((row.step_s for row in rows if math.isfinite(row.step_s)), default=0.0)
    return Column(_BARS, [_bar(row, longest, plain) for row in rows], align="left", drop=2)


def _bar(row: ScenarioResult, longest_s: float, plain: bool) -> Text:
    from rich.text import Text

    bar = Text()
    if not 0 < row.step_s <= longest_s:
        return bar
    length = max(1, round(BAR_WIDTH * row.step_s / longest_s))
    for (_, simple, glyph, colour), cells in zip(
            PARTS, apportion(parts_s(row.breakdown), length), strict=True):
        bar.append((simple if plain else glyph) * cells, style=colour)
    return bar
