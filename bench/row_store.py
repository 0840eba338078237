"""Measured rows in a file: ``--save`` puts them there, and ``--show`` prints them.

Each row is written as soon as it is measured, so that a run that is ended early loses only what was
under way. It keeps the day, the commit and the machine of its run (`harp.provenance`).
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from bench.rows import Mistake
from harp.cli.io import check_target, read_text, write_text
from harp.provenance import stamp
from harp.reading import FileError, parse

if TYPE_CHECKING:
    from collections.abc import Iterable

    import click

    from bench.rows import Result


def when_measured(rows: Iterable[Result]) -> str:
    """Describe in one line when rows were measured, newest first; "" if none has a stamp."""
    counted = Counter((row["stamp"]["date"], row["stamp"]["commit"], row["stamp"]["machine"])
                      for row in rows if "stamp" in row)
    return "\n".join(
        f"{number} row{'s' if number > 1 else ''} of {date}, commit {commit}, {machine}"
        for (date, commit, machine), number in sorted(counted.items(), reverse=True))


class Store:
    """A file of results by id."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, Result] = {}
        self._stamp = stamp()  # once: rows that are written may change the checkout that it names
        if not path.exists():
            return  # --save makes it
        try:
            self.rows = {row["id"].text(): dict(row.plain())
                         for row in parse(read_text(path)).each()}
        except FileError as error:
            raise Mistake(f"{path} is no file of rows: {error}") from None

    def save(self, rows: Iterable[Result]) -> None:
        """Replace the rows of the same id; tables inside a row are merged. The write is atomic."""
        for row in ({**row, "stamp": self._stamp} for row in rows):
            old = self.rows.get(row["id"], {})
            self.rows[row["id"]] = {key: old[key] | value if isinstance(value, dict)
                                    and isinstance(old.get(key), dict) else value
                                    for key, value in row.items()}
        write_text(str(self.path), json.dumps(list(self.rows.values()), indent=2) + "\n")


def open_store(_: click.Context, param: click.Parameter, value: str | None) -> Store | None:
    """Read the file of ``--save`` or ``--show``: an option's callback."""
    if value is None:
        return None
    store = Store(Path(value))
    if param.name == "kept":
        check_target(value, stdout=False)  # before hours of measurements
    elif not store.rows:
        raise Mistake(f"--show {value}: there is no such file, or it has no rows")
    return store
