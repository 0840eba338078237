"""The comparison of two topology files as two tables, and as JSON.

The first table has a line a key: ``-`` as before, ``+`` as after. The second has a line a row of
the answers: images/s before and after, the change, and ``~`` where the intervals of the two
overlap, so that the sign of the change is not sure; what limits the row; and costs where the files
have prices.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sim.report.answer_table import limited_by
from sim.report.cost_table import money
from sim.report.numbers import percent, rate, rate_unit, rounded
from sim.report.screen import Column, console_for, fit, grid, show, text_column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from sim.answer.comparison import Comparison, Pair
    from sim.records.results import ScenarioResult

VERSION = 1
"""Version of the JSON."""
SAME = 5e-4
"""Relative change below which a row is the same as printed."""


def print_comparison(compared: Comparison, before: str, after: str, *,
                     console: Console | None = None) -> None:
    """Print both tables, by default on standard output."""
    from rich.text import Text

    console = console_for() if console is None else console
    show(console, Text(f"--- {before}\n+++ {after}", style="bold"))
    for change in compared.changes:
        for mark, value, style in (("-", change.before, "red"), ("+", change.after, "green")):
            if value is not None:
                show(console, Text(f"{mark} {change.key}: {value}", style=style))
    if not compared.changes:
        show(console, Text("The files mean the same.", style="dim"))
    show(console, Text(""))
    if compared.pairs:
        show(console, grid(fit(_columns(compared.pairs), console.width)))
    if any(pair.is_sure is False for pair in compared.pairs):
        show(console, Text("~: P10 to P90 of the two overlap.", style="dim"))
    shared = set(compared.before.notes) & set(compared.after.notes)
    for mark, report in (("-", compared.before), ("+", compared.after)):
        for note in report.notes:
            if note not in shared:
                show(console, Text(f"{mark} {note}", style="dim"))


def _columns(pairs: Sequence[Pair]) -> list[Column]:
    several = len({pair.job for pair in pairs}) > 1
    olds, news = [pair.before for pair in pairs], [pair.after for pair in pairs]
    unit = rate_unit(row for row in (*olds, *news) if row is not None)
    columns = [
        text_column("scenario", (pair.name for pair in pairs), align="left", folds=True),
        text_column("job", (pair.job if several else "" for pair in pairs), align="left"),
        text_column("GPUs", (str(pair.gpus) for pair in pairs)),
        text_column(f"{unit}\nbefore", map(_rate, olds)),
        text_column(f"{unit}\nafter", map(_rate, news)),
        text_column("change", map(_change, pairs)),
        text_column("limited by", (_limits(pair) for pair in pairs), align="left", drop=2)]
    first = next((row for row in (*news, *olds) if row is not None and row.cost), None)
    if first is not None and first.cost is not None:
        unit, goal = first.cost.currency, first.cost.goal
        columns += [text_column(f"{unit} a day\n{when}", map(_day, rows), drop=1)
                    for when, rows in (("before", olds), ("after", news))]
        if goal:
            columns += [text_column(f"{unit} {when}\nfor {goal}", map(_whole, rows))
                        for when, rows in (("before", olds), ("after", news))]
    return columns


def _rate(row: ScenarioResult | None) -> str:
    return "-" if row is None else rate(row.images_per_s)


def _change(pair: Pair) -> str:
    if pair.ratio is None:
        return "new" if pair.before is None else "gone" if pair.after is None else ""
    if abs(pair.ratio - 1) < SAME:
        return "="
    mark = "~ " if pair.is_sure is False else ""
    return mark + percent(pair.ratio - 1, sign=True, decimals=1)


def _limits(pair: Pair) -> str:
    limits = [limited_by(row) for row in (pair.before, pair.after) if row is not None]
    return " -> ".join(dict.fromkeys(limits))


def _day(row: ScenarioResult | None) -> str:
    return "-" if row is None or row.cost is None else money(row.cost.day)


def _whole(row: ScenarioResult | None) -> str:
    if row is None or row.cost is None or not row.whole_s:
        return "-"
    return money(row.cost.of(row.whole_s[0]))


def comparison_json(compared: Comparison, before: str, after: str) -> str:
    """Text of the JSON document."""
    document = {
        "version": VERSION,
        "before": before,
        "after": after,
        "changes": [{"key": change.key, "before": change.before, "after": change.after}
                    for change in compared.changes],
        "rows": [{
            "name": pair.name,
            "gpus": pair.gpus,
            "job": pair.job,
            "before": _row(pair.before),
            "after": _row(pair.after),
            "change_pct": None if pair.ratio is None else rounded(100 * (pair.ratio - 1)),
            "sure": pair.is_sure,
        } for pair in compared.pairs],
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _row(row: ScenarioResult | None) -> dict[str, Any] | None:
    if row is None:
        return None
    interval = row.interval
    return {
        "images_per_s": rounded(row.images_per_s),
        "interval": None if interval is None else [
            rounded(interval.low_images_per_s), rounded(interval.high_images_per_s)],
        "step_ms": rounded(row.step_s * 1e3),
        "limits": [limit.name for limit in row.limits],
        "cost_day": None if row.cost is None else rounded(row.cost.day),
        "cost_goal": (rounded(row.cost.of(row.whole_s[0]))
                      if row.cost is not None and row.whole_s else None),
    }
