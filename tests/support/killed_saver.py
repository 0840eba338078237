"""A process that saves for ever, and is killed by SIGKILL amid that."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support import PATIENCE_S, ROOT

if TYPE_CHECKING:
    from pathlib import Path


def kill_after_saves(program: str, folder: Path, saves: int) -> None:
    """Run a program, which prints ``saved`` after each save into a folder, and kill it."""
    process = subprocess.Popen([sys.executable, "-c", program, str(folder)], cwd=ROOT,
                               stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(saves):
        assert process.stdout.readline() == "saved\n"
    process.kill()
    process.communicate(timeout=PATIENCE_S)
