"""A folder of outcomes by their key, so that no point runs twice.

A file holds one outcome and is written whole or not at all, so a sweep that is killed loses only
the points that were running, and several sweeps may share a folder. A file that cannot be read as
an outcome of its key counts as absent.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from harp.cli.io import make_folder, write_text
from sim.sweeps.study import Outcome

if TYPE_CHECKING:
    from pathlib import Path


class Store:
    """See the module's manual."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self.folder = folder

    def get(self, key: str) -> Outcome | None:
        """Read the outcome of ``key``, or None."""
        try:
            stored = json.loads(self._path(key).read_text("utf-8"))
            if stored["key"] != key:
                return None
            return Outcome(key, tuple(stored["changes"]), tuple(map(tuple, stored["rows"])),
                           stored["error"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, outcome: Outcome) -> None:
        """Keep an outcome; raises OutputError, e.g. where the disk is full."""
        path = self._path(outcome.key)
        make_folder(path.parent)
        write_text(str(path), json.dumps({
            "key": outcome.key, "changes": outcome.changes, "rows": outcome.rows,
            "error": outcome.error}) + "\n")

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"
