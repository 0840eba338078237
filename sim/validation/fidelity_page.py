"""Fidelities held against one another: a table on the screen, and a page for the docs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harp.cli.io import write_bytes, write_text
from sim.report.numbers import percent
from sim.report.screen import grid, show, text_column
from sim.validation.fidelities import MEDIAN_TARGET, WORST_TARGET, median_error
from sim.validation.ratio_plot import draw_ratios

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from sim.validation.fidelities import Compared

INTRODUCTION = """\
# Fidelities held against one another

Made by `python -m sim.validate fidelities --page docs/fidelities.md`; do not edit. Each row is one
collective or pattern, alone on the cluster of `sim/validation/fidelities.yaml` (sixteen hosts under
four leaves, 25 Gb/s, HARP or kernel TCP) with some values changed. It runs twice, and the second
run counts. The error is that of `flow` relative to `packet`: below zero where the fluid is too
fast. Nothing is fitted. [packet.md](packet.md) says what `packet` models.

A *correction* is what `flow` itself says beside such an answer: a cause, found by a rule in what
runs, and how much longer packets took where it was at work. Its interval is of other cases than
these (`python -m sim.validate corrections`, `sim/network/corrections.py`); beside it stands
whether this case lies within.

Reasons are tested: `without it` is the error of the same case where what the reason names is taken
away. Queues are, with ports of 100 Gb/s a GPU and a fabric of four times that, which no network
thread fills; forks and joins are, in a tree of two hosts.
"""


def print_compared(rows: Sequence[Compared], console: Console) -> None:
    """Print a line a row, and what they amount to."""
    from rich.text import Text

    show(console, grid([
        text_column("case", [row.case.name for row in rows], align="left", folds=True),
        text_column("flow", [_us(row.flow_s) for row in rows]),
        text_column("packet", [_us(row.packet_s) for row in rows]),
        text_column("error", [percent(row.error, sign=True) for row in rows]),
        text_column("without its reason", [_without(row) for row in rows]),
        text_column("correction", [_held(row) for row in rows], align="left"),
    ]))
    show(console, Text(summary_line(rows)))


def write_compared(rows: Sequence[Compared], page: Path) -> None:
    """Write the page, and its plot under the same name with .png."""
    plot = page.with_suffix(".png")
    write_bytes(str(plot), draw_ratios([row.case.name for row in rows],
                                       [row.error for row in rows], WORST_TARGET, "flow / packet"))
    picture = f"![Flow over packet of every row]({plot.name})"
    lines = ["| case | flow | packet | error | correction, or why | without it |",
             "|---|---|---|---|---|---|"]
    lines += [f"| {row.case.name} | {_us(row.flow_s)} | {_us(row.packet_s)} | "
              f"{percent(row.error, sign=True)} | {_reason(row)} | {_without(row)} |"
              for row in rows]
    write_text(str(page), "\n".join([INTRODUCTION, summary_line(rows), "", picture, "", *lines,
                                     ""]))


def summary_line(rows: Sequence[Compared]) -> str:
    """Say in a sentence how near the two are, beside the targets."""
    near = sum(abs(row.error) <= WORST_TARGET for row in rows)
    corrected = sum(row.corrected and abs(row.error) > WORST_TARGET for row in rows)
    left = len(rows) - near - corrected
    others = f", and {left} {'says' if left == 1 else 'say'} why" if left else ""
    return (f"{len(rows)} cases: median error {median_error(rows):.1%} (target "
            f"{MEDIAN_TARGET:.0%}); {near} of them within {WORST_TARGET:.0%}, {corrected} more "
            f"where their corrections say{others}.")


def _held(row: Compared) -> str:
    if not row.corrections:
        return ""
    return "holds" if row.corrected else "does not hold"


def _reason(row: Compared) -> str:
    said = "; ".join(f"{each.name}: {interval.in_words()}"
                     for each, interval in zip(row.corrections, row.intervals, strict=True))
    return "; ".join(filter(None, (said, _held(row), row.case.note)))


def _without(row: Compared) -> str:
    return "" if row.without is None else percent(row.without, sign=True)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} us"
