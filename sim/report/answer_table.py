"""The answer as a table, with the parts of each step (``--explain``) and the causes (``--why``).

The table has one line for each scenario and number of GPUs: P10, P50 (the prediction) and P90, the
answer at the parameters' values, the published (or measured) figure and the relative error. A row
whose error exceeds its ``within`` is marked, and a sentence below gives both. Further columns show
the bottleneck and the runner-up, the step, its exposed (not compute) time, and the exposed time
that the published figure implies. A narrow terminal drops the least important columns; intervals
and predictions then follow below the table.

``--explain`` splits each step into five parts and shows its critical path. The printed milliseconds
add up to the printed step, and the percentages to 100.

``--why`` is a tornado, the widest cause first: each parameter goes to its own P10 and P90 while all
others stay at their values, so that images/s at both ends lie around the answer of the table. Bars
have one scale for the whole table.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from sim.report.numbers import (
    apportion,
    milliseconds_decimals,
    percent,
    rate,
    rate_unit,
    shown_ms,
)
from sim.report.quantities import quantity
from sim.report.screen import BAR_WIDTH, Column, console_for, fit, grid, show

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console
    from rich.text import Text

    from sim.records.results import Breakdown, Cause, Report, ScenarioResult


_QUANTILES = ("P10", "P50", "P90")
"""Headers of the interval's columns."""


def print_report(report: Report, *, console: Console | None = None) -> None:
    """Print the scenario table and the notes below it, by default on standard output."""
    from rich.text import Text

    console = console_for() if console is None else console
    show(console, Text(report.topology, style="bold"))
    columns: list[Column] = []
    if report.scenarios:
        columns = fit(columns_of(report.scenarios, plain=console.options.ascii_only),
                      console.width)
        show(console, grid(columns, section_ends(report.scenarios)))
    for note in notes(report, [column.header for column in columns]):
        show(console, Text(note, style="dim"))


def outside(row: ScenarioResult) -> bool:
    """Whether the row's error exceeds its ``within``."""
    return row.expect is not None and row.error is not None and not (
        abs(row.error) <= row.expect.within)


def label(row: ScenarioResult) -> str:
    """Name a row in a sentence: ``Horovod+TCP, 16 GPUs``, with its job where it has one."""
    job = f" ({row.job})" if row.job else ""
    return f"{row.name}{job}, {row.gpus} GPU{'' if row.gpus == 1 else 's'}"


def section_ends(rows: Sequence[ScenarioResult]) -> list[int]:
    """Return the indices of rows after which a gap sets scenarios of several rows apart."""
    names = [row.name for row in rows]
    several = {name for name, after in pairwise(names) if name == after}
    return [i for i, (name, after) in enumerate(pairwise(names))
            if name != after and (name in several or after in several)]


def name_columns(rows: Sequence[ScenarioResult]) -> list[Column]:
    """Return the columns that identify a row: scenario, job (if there are several), GPUs."""
    several_jobs = len({row.job for row in rows}) > 1
    return [
        Column("scenario", _texts(row.name for row in rows), align="left", folds=True),
        Column("job", _texts(row.job if several_jobs else "" for row in rows), align="left"),
        Column("GPUs", _texts(str(row.gpus) for row in rows)),
    ]


def notes(report: Report, headers: Sequence[str] = ()) -> list[str]:
    """Sentences below the table: disagreements, sources, intervals, and the rows' own notes.

    ``headers`` are those of the table's columns; notes do not repeat them.
    """
    rows = report.scenarios
    lines = [_disagreement(row) for row in rows if outside(row)]
    lines += _sources(rows)
    if _expected_exposed_header(rows) not in headers:
        decimals = milliseconds_decimals(min((row.step_s for row in rows), default=1.0))
        lines += [_exposed_note(row, decimals) for row in rows if _is_predicted(row)]
    lines += _interval_notes(rows, each=not all(header in headers for header in _QUANTILES))
    by_note: dict[str, list[str]] = {}
    for row in rows:
        for note in row.notes:
            by_note.setdefault(note, []).append(label(row))
    lines += [note if len(owners) == len(rows) > 1 else f"{_listed(owners)}: {note}"
              for note, owners in by_note.items()]
    return lines + list(report.notes)


def columns_of(rows: Sequence[ScenarioResult], *, plain: bool) -> list[Column]:
    """Return all columns of the table; ``plain`` keeps to ASCII."""
    decimals = milliseconds_decimals(min(row.step_s for row in rows))
    parts = [_parts_ms(row, decimals) for row in rows]
    return [
        *name_columns(rows),
        *_quantiles(rows),
        Column(rate_unit(rows), _texts((rate(row.images_per_s) for row in rows), "bold")),
        Column("tokens/s", _texts("" if row.tokens_per_s is None else rate(row.tokens_per_s)
                                  for row in rows), drop=4),
        Column("MFU", _texts("" if row.mfu is None else percent(row.mfu) for row in rows), drop=4),
        Column("effi-\nciency", _texts(
            "" if row.efficiency is None else percent(row.efficiency) for row in rows), drop=2),
        Column(_expected_header(rows), _texts(
            "" if row.expect is None else rate(row.expect.images_per_s) for row in rows)),
        Column("error", [_error(row, plain=plain) for row in rows]),
        Column("kind", _texts("" if row.expect is None else row.expect.kind for row in rows),
               align="left", drop=4),
        Column("limited by, then", _texts(limited_by(row) for row in rows), align="left", drop=1),
        Column("step\nms", _texts(step for step, _, _ in parts), drop=5),
        Column("GPU\nGiB", _texts(_gib(row) for row in rows), drop=6),
        Column("compute\nms", _texts(compute for _, compute, _ in parts), drop=8),
        Column("exposed\nms", _texts(exposed for _, _, exposed in parts), drop=6),
        Column(_expected_exposed_header(rows), _texts(
            "" if (exposed_s := row.expected_exposed_s) is None or not math.isfinite(exposed_s)
            else f"{exposed_s * 1e3:.{decimals}f}" for row in rows), drop=7),
    ]


def _quantiles(rows: Sequence[ScenarioResult]) -> list[Column]:
    found = [None if row.interval is None else
             (row.interval.low_images_per_s, row.interval.median_images_per_s,
              row.interval.high_images_per_s) for row in rows]
    return [Column(header, _texts("" if each is None else rate(each[place]) for each in found),
                   drop=3) for place, header in enumerate(_QUANTILES)]


def limited_by(row: ScenarioResult) -> str:
    """Bottleneck and runner-up, the latter where it holds a hundredth of the step."""
    return ", ".join(limit.name for number, limit in enumerate(row.limits[:2])
                     if number == 0 or limit.seconds >= 0.01 * row.step_s)


def _parts_ms(row: ScenarioResult, decimals: int) -> list[str]:
    """Step, compute and exposed time such that they add up as shown."""
    return shown_ms(row.step_s, row.breakdown.compute_s, [row.breakdown.exposed_s], decimals)


def _gib(row: ScenarioResult) -> str:
    """Memory of the fullest GPU, where all of it is known."""
    if row.memory is None or row.memory.activations is None:
        return ""
    return f"{row.memory.total / 2**30:.1f}"


def _texts(values: Iterable[str], style: str = "") -> list[Text]:
    from rich.text import Text

    return [Text(value, style=style) for value in values]


def _error(row: ScenarioResult, *, plain: bool) -> Text:
    if row.error is None:
        return _texts([""])[0]
    text = percent(row.error, sign=True, decimals=1)
    if outside(row):
        return _texts([f"{'!' if plain else '✗'} {text}"], "bold red")[0]
    return _texts([text], "green")[0]


def _expected_header(rows: Sequence[ScenarioResult]) -> str:
    measured = {row.expect.kind == "measured" for row in rows if row.expect is not None}
    if len(measured) == 2:
        return "reference"
    return "measured" if measured == {True} else "published"


def _disagreement(row: ScenarioResult) -> str:
    assert row.expect is not None
    assert row.error is not None
    return (f"{label(row)}: {rate(row.images_per_s)} {rate_unit([row])} differ from "
            f"{rate(row.expect.images_per_s)} by {percent(abs(row.error), decimals=1)}; "
            f"allowed: {percent(row.expect.within, decimals=1)}.")


def _sources(rows: Iterable[ScenarioResult]) -> list[str]:
    sources = dict.fromkeys(row.expect.source for row in rows
                            if row.expect is not None and row.expect.source)
    return [f"Compared with: {'; '.join(sources)}."] if sources else []


def _expected_exposed_header(rows: Sequence[ScenarioResult]) -> str:
    return f"{_expected_header(rows)}\nexposed ms"


def _is_predicted(row: ScenarioResult) -> bool:
    """Whether the row's exposed time can be compared with the figure's: the row is not fitted."""
    return (row.expect is not None and row.expect.kind != "fitted"
            and math.isfinite(row.step_s) and row.gpus > 1)


def _exposed_note(row: ScenarioResult, decimals: int) -> str:
    assert row.expect is not None
    assert row.expected_exposed_s is not None
    word = "measured" if row.expect.kind == "measured" else "published"
    return (f"{label(row)}: {_parts_ms(row, decimals)[2]} ms exposed; the {word} "
            f"{rate(row.expect.images_per_s)} {rate_unit([row])} leave "
            f"{row.expected_exposed_s * 1e3:.{decimals}f} ms.")


def _interval_notes(rows: Iterable[ScenarioResult], *, each: bool) -> list[str]:
    """One sentence on the draws and, if the table does not show them, the intervals."""
    found = [(row, row.interval) for row in rows if row.interval is not None]
    if not found:
        return []
    draws = max(interval.draws for _, interval in found)
    unit = rate_unit(row for row, _ in found)
    lines = [f"P10, P50, P90: {unit} over {draws} draws of the uncertain parameters and of "
             "source ports, and a margin for what else clusters differ by"
             + ("; each draw fits the fitted parameters again"
                if all(interval.refitted for _, interval in found) else "")
             + ". P50 is the prediction; other columns are at the parameters' values."]
    if each:
        lines += [f"{label(row)}: {rate(interval.low_images_per_s)} to "
                  f"{rate(interval.high_images_per_s)} {rate_unit([row])}, "
                  f"{_ms(interval.low_exposed_s)} to {_ms(interval.high_exposed_s)} ms exposed."
                  for row, interval in found]
    return lines


def _ms(seconds: float) -> str:
    """Milliseconds that need no more than a glance: one decimal, none from 1000 up."""
    value = seconds * 1e3
    if 0 < abs(value) < 0.05:
        return f"{value:.2g}"
    return f"{value:.0f}" if abs(value) >= 999.95 else f"{value:.1f}"


def _listed(names: Sequence[str], most: int = 3) -> str:
    if len(names) > most:
        return f"{'; '.join(names[:most - 1])} and {len(names) - most + 1} more"
    return "; ".join(names)


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
    columns = fit([*_part_columns(report.scenarios, 1 if plain else 2),
                   _bars(report.scenarios, plain)], console.width)
    if columns[-1].header != _BARS:  # No room for bars, so no need of their glyphs.
        columns = fit(_part_columns(report.scenarios, None), console.width)
    show(console, grid(columns, section_ends(report.scenarios)))
    columns = fit(_path_columns(report.scenarios), console.width)
    show(console, grid(columns, section_ends(report.scenarios)))


def _path_columns(rows: Sequence[ScenarioResult]) -> list[Column]:
    """The longest parts of the critical path, in shares of the step."""
    from rich.text import Text

    def text(row: ScenarioResult, number: int) -> Text:
        if number >= len(row.limits) or not row.limits[number].seconds >= 5e-4 * row.step_s:
            return Text()
        limit = row.limits[number]
        return Text(f"{percent(limit.seconds / row.step_s, decimals=1):>7} {limit.name}")

    return [*name_columns(rows), *(
        Column(header, [text(row, number) for row in rows], align="left", drop=number)
        for number, header in enumerate(PATH))]


def _part_columns(rows: Sequence[ScenarioResult], glyph: int | None) -> list[Column]:
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


MOST_CAUSES = 5
"""Causes that are shown of each row."""
ORIGINS = "A parameter is named by the set that defines it: those that ddp inherits are horovod's."


def print_causes(report: Report, *, console: Console | None = None) -> None:
    """Print one line a cause, by default on standard output."""
    from rich.text import Text

    rows = [row for row in report.scenarios if row.causes]
    console = console_for() if console is None else console
    if not rows:
        show(console, Text("No uncertain parameter changes any row.", style="dim"))
        return
    lines = [(row, cause) for row in rows for cause in row.causes[:MOST_CAUSES]]
    ends = [number for number, (row, _) in enumerate(lines[:-1]) if lines[number + 1][0] is not row]
    columns = fit(_cause_columns(lines, plain=console.options.ascii_only), console.width)
    show(console, grid(columns, ends))
    show(console, Text(ORIGINS, style="dim"))


def _cause_columns(lines: Sequence[tuple[ScenarioResult, Cause]], *, plain: bool) -> list[Column]:
    from rich.text import Text

    first = [number == 0 or lines[number - 1][0] is not row
             for number, (row, _) in enumerate(lines)]
    names = [Column(column.header, [cell if shown else Text("")
                                    for cell, shown in zip(column.cells, first, strict=True)],
                    align=column.align, folds=column.folds)
             for column in name_columns([row for row, _ in lines])]
    widest = max(cause.width / row.images_per_s for row, cause in lines)
    unit = rate_unit(row for row, _ in lines)
    return [
        *names,
        Column("due to", [Text(cause.parameter) for _, cause in lines], align="left"),
        Column("from", [Text(_value(cause, cause.low)) for _, cause in lines], drop=1),
        Column("to", [Text(_value(cause, cause.high)) for _, cause in lines], drop=1),
        Column(f"{unit}\nfrom", [Text(rate(cause.at_low)) for _, cause in lines]),
        Column(f"{unit}\nto", [Text(rate(cause.at_high)) for _, cause in lines]),
        Column("width", [Text(percent(cause.width / row.images_per_s)) for row, cause in lines]),
        Column("", [Text(("#" if plain else "█") * max(1, round(
            BAR_WIDTH * cause.width / row.images_per_s / widest)), style="blue")
            for row, cause in lines], align="left", drop=2),
    ]


def _value(cause: Cause, value: float | None) -> str:
    return "" if value is None else quantity(cause.parameter, float(f"{value:.3g}"))
