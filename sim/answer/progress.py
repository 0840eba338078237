"""A live progress bar on standard error, so that standard output holds the answer alone.

Off when standard error is not a terminal or the user asked for quiet. It disappears when done.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class Advance(Protocol):
    """Moves the bar: ``advance()`` by one, ``advance(0, "ring, 4 MiB")`` only to say what runs."""

    def __call__(self, steps: float = 1, doing: str | None = None) -> None:
        """Add ``steps`` to what is done, and name what comes next."""


@contextmanager
def progress(total: float, label: str, *, quiet: bool = False) -> Iterator[Advance]:
    """Show a bar of ``total`` steps named ``label`` while the block runs."""
    if quiet or not sys.stderr.isatty():
        yield _nothing
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(TextColumn("{task.description}"), BarColumn(bar_width=24),
                   TextColumn("{task.completed:.0f}/{task.total:.0f}"), TimeElapsedColumn(),
                   console=Console(stderr=True), transient=True)
    with bar:
        task = bar.add_task(escape(label), total=total)

        def advance(steps: float = 1, doing: str | None = None) -> None:
            name = label if doing is None else f"{label}: {doing}"
            bar.update(task, advance=steps, description=escape(name))

        yield advance


def _nothing(steps: float = 1, doing: str | None = None) -> None:
    """Stand in for a bar that nobody would see."""
