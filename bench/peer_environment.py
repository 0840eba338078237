"""Peers from the registry, each in an environment of its own: build/NAME, made when a row needs it.

Their releases are fixed, so that a row is the same later. A peer that cannot be installed, or does
not run, is a `PeerError` with the last line of what it said; its row names it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from bench.arms import ROOT
from bench.subject import PeerError

TORCH = torch.__version__.partition("+")[0]
"""The project's, which peers of torch have too."""

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INSTALL_S = 1800.0


def environment(**more: str) -> dict[str, str]:
    """Variables of a peer's processes: no GPU, and no path of this environment."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    return {**kept, "PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "CUDA_VISIBLE_DEVICES": "",
            **more}


def run(command: Sequence[str | Path | float], seconds: float,
        variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. PeerError if it takes longer."""
    try:
        return subprocess.run([str(word) for word in command], text=True, capture_output=True,
                              check=False, timeout=seconds, cwd=ROOT, env=dict(variables))
    except subprocess.TimeoutExpired:
        raise PeerError(f"it was not ready after {seconds:.0f} s") from None


def last_line(said: str) -> str:
    """Give the line that names an error: the last one, without the rank before it."""
    lines = [re.sub(r"^\[rank\d+\]: ", "", line).strip() for line in said.splitlines()]
    return next((line for line in reversed(lines) if line), "it said nothing")


def folder_of(name: str) -> Path:
    """The folder of a peer's environment."""
    return ROOT / "build" / name


@cache
def installed(name: str, *calls: str) -> Path:
    """Make a peer's environment unless it is there, and give its Python.

    Each call is what pip is asked to install at once.
    """
    folder = folder_of(name)
    python, stamp, required = folder / "bin" / "python", folder / "stamp", "\n".join(calls)
    if stamp.exists() and stamp.read_text("utf-8") == required:
        return python
    commands = [
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        *([str(python), "-m", "pip", "install", "-q", *words.split()] for words in calls)]
    for command in commands:
        done = run(command, INSTALL_S, environment())
        if done.returncode:
            raise PeerError(last_line(done.stderr or done.stdout))
    stamp.write_text(required, encoding="utf-8")
    return python
