"""Fidelity packet against closed forms and published results, as tables and as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from sim.records.reference_rows import Row

INTRODUCTION = """\
# Packets against closed forms and others' results

Made by `python -m sim.validate packet --page docs/results/packet-published.md`; do not edit.
Nothing is fitted. [packet.md](../inside/packet.md) describes the model.
"""
FORMS = """\
## Closed forms

Each formula takes sizes and rates, and nothing of the simulator; beside it is the packet network's
result (`sim/network/packet/reference_cases.py`, `sim/validation/closed_forms.py`). Collectives and
caps run on sixteen hosts of 25 Gb/s under one switch, with stacks that cost nothing; three links
are of 10, 25 and 100 Gb/s, and flows share links of 10 Gb/s. R is a line's rate, L a frame with all
its headers, S the bytes with theirs, alpha two latencies and the first frame's transfer.
"""
PUBLISHED = """\
## Others' results

Each case is built as its source describes it. If a source gives bounds, the difference is to the
nearest one.
"""


def unexplained(rows: Sequence[Row]) -> list[Row]:
    """Rows that are off without a reason."""
    return [row for row in rows if row.off and not row.note]


def _cells(row: Row) -> list[str]:
    theirs = _number(row.low)
    if row.high != row.low:
        theirs += f" to {_number(row.high)}"
    return [row.case, row.figure, f"{theirs} {row.unit}".strip(),
            f"{_number(row.ours)} {row.unit}".strip(),
            f"{row.error:+.1%}" if row.error else "within"]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def print_tables(tables: Sequence[Sequence[Row]], console: Console) -> None:
    """Print one line for each row of closed forms and of published results."""
    from rich.text import Text

    from sim.report.screen import Column, grid, show

    names = ("case", "form or figure", "expected", "packet", "deviation")
    rows = [row for table in tables for row in table]
    columns = zip(*map(_cells, rows), strict=True)
    show(console, grid([Column(name, [Text(cell) for cell in cells],
                               align="left" if name in names[:2] else "right")
                        for name, cells in zip(names, columns, strict=True)]))


def write_tables(tables: Sequence[Sequence[Row]], page: Path) -> None:
    """Write the page: closed forms first, then what was published."""
    from harp.cli.io import write_text
    from harp.provenance import dated

    forms, published = tables
    write_text(str(page), "\n".join([
        INTRODUCTION, dated(measured=False), FORMS, *_table(forms, "form", "expected"), "",
        PUBLISHED, *_table(published, "figure", "theirs"), ""]))


def _table(rows: Sequence[Row], figure: str, expected: str) -> list[str]:
    return [f"| case | {figure} | {expected} | packet | deviation | source | note |",
            "|---|---|---|---|---|---|---|",
            *(f"| {' | '.join(_cells(row))} | {row.source} | {row.note} |" for row in rows)]
