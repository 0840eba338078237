"""Text tables that fit the terminal or file.

On a terminal a table uses the terminal's width and colours; in a file it is plain text of 120
columns (or ``COLUMNS``). A table that is too wide drops its least important columns; a number is
never wrapped or cut.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TextIO

    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

PLAIN_WIDTH = 120
BAR_WIDTH = 22
"""Of the longest bar beside a row."""
_NAME_WIDTH = 16
"""Down to this width a column of names may be folded before another column is dropped."""
_GAP = 2


@dataclass(frozen=True)
class Column:
    """One column: its header, one cell a row, and when to give it up."""

    header: str
    cells: Sequence[Text]
    drop: int = 0
    """Columns with the highest number go first; those with 0 never."""
    align: Literal["left", "right"] = "right"
    folds: bool = False
    """Whether long cells may go on in a second line (names, never numbers)."""

    @property
    def narrowest(self) -> int:
        """The fewest character cells in which the column can stand."""
        widest = max(cell.cell_len for cell in self.cells)
        if self.folds:
            widest = min(widest, _NAME_WIDTH)
        return max(widest, *(len(line) for line in self.header.split("\n")))


def text_column(header: str, cells: Iterable[str], *, drop: int = 0,
                align: Literal["left", "right"] = "right", folds: bool = False) -> Column:
    """Make a column of cells without style."""
    from rich.text import Text

    return Column(header, [Text(cell) for cell in cells], drop, align, folds)


def console_for(stream: TextIO | None = None) -> Console:
    """Return a rich console for ``stream`` (default: standard output)."""
    from rich.console import Console

    stream = sys.stdout if stream is None else stream
    if hasattr(stream, "reconfigure"):
        # A name outside the terminal's character set shall cost a question mark, not the answer.
        stream.reconfigure(errors="replace")
    console = Console(file=stream, highlight=False)
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(file=stream, highlight=False, width=PLAIN_WIDTH)


def fit(columns: Iterable[Column], width: int) -> list[Column]:
    """Leave out the empty columns, and then as many as it takes to stay within ``width``.

    Columns of one ``drop`` number go together.
    """
    kept = [column for column in columns if any(column.cells)]
    while sum(column.narrowest + _GAP for column in kept) - _GAP > width:
        least = max(column.drop for column in kept)
        if least == 0:
            break
        kept = [column for column in kept if column.drop != least]
    return kept


def show(console: Console, content: RenderableType) -> None:
    """Print ``content``; into a file without the blanks that pad a table's lines."""
    if console.is_terminal:
        console.print(content)
        return
    with console.capture() as captured:
        console.print(content)
    console.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def grid(columns: Sequence[Column], sections: Iterable[int] = ()) -> Table:
    """Return the columns as a rich table; a gap follows each row index in ``sections``."""
    from rich.box import Box
    from rich.table import Table

    rule = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
    table = Table(box=rule, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0),
                  header_style="bold")
    for column in columns:
        table.add_column(column.header, justify=column.align, no_wrap=not column.folds,
                         overflow="fold", vertical="top",
                         min_width=column.narrowest)
    breaks = set(sections)
    for index, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        table.add_row(*cells, end_section=index in breaks)
    return table
