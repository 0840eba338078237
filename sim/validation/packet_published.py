"""Kernel TCP over packets against what others found, as a table and as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from sim.records.published import Row

TOLERANCE = 0.10
"""Largest difference of a row that does not say why."""
INTRODUCTION = """\
# Kernel TCP over packets against others' results

Made by `python -m sim.validate packet --page docs/packet-published.md`; do not edit. Each case is
built as its source tells it, and nothing is fitted. Where a source gives bounds, the difference is
to the nearest one. [packet.md](packet.md) says what is modelled.
"""


def unexplained(rows: list[Row]) -> list[Row]:
    """Rows that are off by more than `TOLERANCE` without a note."""
    return [row for row in rows if abs(row.error) > TOLERANCE and not row.note]


def _cells(row: Row) -> list[str]:
    theirs = f"{row.low:g}" if row.low == row.high else f"{row.low:g} to {row.high:g}"
    return [row.case, row.figure, f"{row.ours:.3g} {row.unit}".strip(),
            f"{theirs} {row.unit}".strip(), f"{row.error:+.1%}" if row.error else "within"]


def print_rows(rows: list[Row], console: Console) -> None:
    """Print a line a row."""
    from rich.text import Text

    from sim.report.screen import Column, grid, show

    names = ("case", "figure", "ours", "theirs", "difference")
    columns = zip(*map(_cells, rows), strict=True)
    show(console, grid([Column(name, [Text(cell) for cell in cells],
                               align="left" if name in names[:2] else "right")
                        for name, cells in zip(names, columns, strict=True)]))


def write_rows(rows: list[Row], page: Path) -> None:
    """Write the page."""
    from sim.report.write import write_text

    lines = ["| case | figure | ours | theirs | difference | source | note |",
             "|---|---|---|---|---|---|---|"]
    lines += [f"| {' | '.join(_cells(row))} | {row.source} | {row.note} |" for row in rows]
    write_text(str(page), "\n".join([INTRODUCTION, *lines, ""]))
