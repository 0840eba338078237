"""A live progress bar on standard error, so that standard output holds only the answer.

It is off if standard error is no terminal or with --quiet, and disappears at the end. Work that
may take hours asks for `lasting`: the bar then shows the time left, and where standard error is a
log, a line at every tenth says the same.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class Advance(Protocol):
    """Moves the bar: ``advance()`` by one step, ``advance(0, "4 MiB")`` only names work."""

    def __call__(self, steps: float = 1, doing: str | None = None) -> None:
        """Add ``steps`` to those done, and name the next work."""


@contextmanager
def progress(total: float, label: str, *, quiet: bool = False,
             lasting: bool = False) -> Iterator[Advance]:
    """Show a bar of ``total`` steps named ``label`` while the block runs."""
    if quiet or not sys.stderr.isatty():
        yield _Lines(total, label) if lasting and not quiet else _nothing
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    left = (TextColumn("left"), TimeRemainingColumn()) if lasting else ()
    bar = Progress(TextColumn("{task.description}"), BarColumn(bar_width=24),
                   TextColumn("{task.completed:.0f}/{task.total:.0f}"), TimeElapsedColumn(), *left,
                   console=Console(stderr=True), transient=True)
    with bar:
        task = bar.add_task(escape(label), total=total)

        def advance(steps: float = 1, doing: str | None = None) -> None:
            name = label if doing is None else f"{label}: {doing}"
            bar.update(task, advance=steps, description=escape(name))

        yield advance


def _nothing(steps: float = 1, doing: str | None = None) -> None:
    """Do nothing, where no bar is shown."""


class _Lines:
    """A line on standard error at every tenth of the work."""

    def __init__(self, total: float, label: str) -> None:
        self._total, self._label = total, label
        self._done, self._shown = 0.0, 0
        self._start_s = time.monotonic()

    def __call__(self, steps: float = 1, doing: str | None = None) -> None:
        del doing
        self._done += steps
        tenth = int(10 * self._done / self._total) if self._total else 10
        if tenth > self._shown and self._done:
            self._shown = tenth
            left_s = (time.monotonic() - self._start_s) * (self._total / self._done - 1)
            print(f"{self._label}: {self._done:.0f} of {self._total:.0f}, "
                  f"about {left_s:.0f} s left", file=sys.stderr, flush=True)
