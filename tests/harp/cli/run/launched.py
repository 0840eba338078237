"""Runs of ``harp run`` for its tests, and what they must not leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PATIENCE_S = 300
HARP = [sys.executable, "-m", "harp.cli.main", "run"]


def run(*arguments, before=(), **variables):
    return subprocess.run([*before, *HARP, *arguments], text=True, capture_output=True, check=False,
                          timeout=PATIENCE_S, env={**os.environ, **variables})


def check_no_orphans(folder):
    for file in folder.iterdir():
        if text := file.read_text():
            state = Path(f"/proc/{int(text)}/stat")
            assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"
