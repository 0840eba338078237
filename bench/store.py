"""Measured rows in a file: ``--save`` puts them there, and ``--show`` prints them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.rows import Mistake

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bench.rows import Result


class Store:
    """A file of results by id."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, Result] = {}
        if not path.exists():
            return  # --save makes it
        try:
            self.rows = {row["id"]: row for row in json.loads(path.read_text("utf-8"))}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Mistake(f"{path} is no file of rows ({error})") from None

    def save(self, rows: Iterable[Result]) -> None:
        """Replace the rows of the same id; tables inside a row are merged. The write is atomic."""
        for row in rows:
            old = self.rows.get(row["id"], {})
            self.rows[row["id"]] = {key: old[key] | value if isinstance(value, dict)
                                    and isinstance(old.get(key), dict) else value
                                    for key, value in row.items()}
        fresh = self.path.with_name(self.path.name + ".new")
        fresh.write_text(json.dumps(list(self.rows.values()), indent=2) + "\n", "utf-8")
        fresh.replace(self.path)


class StoreFile(click.ParamType):
    """A file of rows as an option."""

    name = "file"

    def __init__(self, *, exists: bool = False) -> None:
        self._exists = exists

    def convert(self, value: object, param: click.Parameter | None,
                ctx: click.Context | None) -> Store:
        """Read the file; a Mistake if it holds something else."""
        del param, ctx
        if isinstance(value, Store):
            return value
        store = Store(Path(str(value)))
        if self._exists and not store.rows:
            raise Mistake(f"--show {value}: there is no such file, or it has no rows")
        return store
