"""A live progress bar on standard error, so that standard output holds only the answer.

It is off if standard error is no terminal or with --quiet, and disappears at the end.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class Advance(Protocol):
    """Moves the bar: ``advance()`` by one step, ``advance(0, "4 MiB")`` only names work."""

    def __call__(self, steps: float = 1, doing: str | None = None) -> None:
        """Add ``steps`` to those done, and name the next work."""


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
    """Do nothing, where no bar is shown."""
