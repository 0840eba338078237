"""Packet held against the laboratory: a table on the screen, a page and a plot for the docs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harp.cli.io import write_bytes, write_text
from sim.report.numbers import percent
from sim.report.screen import grid, show, text_column
from sim.validation.laboratory import MEDIAN_TARGET, WORST_TARGET, median_error
from sim.validation.ratio_plot import draw_ratios

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from sim.validation.laboratory import LabCompared

INTRODUCTION = """\
# Packet held against the laboratory

Made by `python -m sim.validate lab --page docs/lab-validation.md` (root; four to five minutes, and
it says how far it is); do not edit. Each row is one collective or pattern on four hosts of 25 Gb/s
under two leaves, with some values changed, at a two-thousandth of the rates: `packet` simulates it,
and in the laboratory ([lab.md](lab.md)) HARP's engines or the kernel's TCP carry the bytes over
kernel routes. It runs four times, and the median of the last three counts; once more where the
machine was too busy. The error is that of `packet` relative to the laboratory: below zero where
packets are too fast. Nothing is fitted.
"""


def print_compared(rows: Sequence[LabCompared], console: Console) -> None:
    """Print a line a row, and what they amount to."""
    from rich.text import Text

    show(console, grid([
        text_column("case", [row.case.name for row in rows], align="left", folds=True),
        text_column("packet", [_us(row.packet_s) for row in rows]),
        text_column("lab", [_us(row.lab_s) for row in rows]),
        text_column("error", [percent(row.error, sign=True) for row in rows]),
    ]))
    show(console, Text(summary_line(rows)))


def write_compared(rows: Sequence[LabCompared], page: Path) -> None:
    """Write the page, and its plot under the same name with .png."""
    plot = page.with_suffix(".png")
    write_bytes(str(plot), draw_ratios([row.case.name for row in rows],
                                       [row.error for row in rows], WORST_TARGET, "packet / lab"))
    lines = ["| case | packet | lab | error | why |", "|---|---|---|---|---|"]
    lines += [f"| {row.case.name} | {_us(row.packet_s)} | {_us(row.lab_s)} | "
              f"{percent(row.error, sign=True)} | {row.case.note} |" for row in rows]
    picture = f"![Packet over laboratory of every row]({plot.name})"
    text = [INTRODUCTION, summary_line(rows), "", picture, "", *lines, ""]
    write_text(str(page), "\n".join(text))


def summary_line(rows: Sequence[LabCompared]) -> str:
    """Say in a sentence how near the two are, beside the targets."""
    near, busy = (sum(map(bool, each)) for each in zip(*(
        (abs(row.error) <= WORST_TARGET, row.busy) for row in rows), strict=True))
    told = (f" The machine was too busy for {busy} of them, whose times in the laboratory are too "
            "long." if busy else "")
    return (f"{len(rows)} cases: median error {median_error(rows):.1%} (target "
            f"{MEDIAN_TARGET:.0%}); {near} of them within {WORST_TARGET:.0%}.{told}")


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} us"
