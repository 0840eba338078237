"""DeepSpeed in an environment of its own, build/deepspeed: the first row that needs it makes it.

Its release is fixed, so that a row is the same later; torch is the project's. It is installed from
the registry, and compiles its kernels when it first runs; row disk-ds needs Debian's libaio-dev.
What does not run is a `PeerError` with the last line of what it said.
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

if TYPE_CHECKING:
    from collections.abc import Sequence

RELEASE = "0.19.8"
FOLDER = ROOT / "build" / "deepspeed"
PYTHON = FOLDER / "bin" / "python"
INSTALL_S, PATIENCE_S = 1800.0, 600.0


def _run(command: Sequence[str | Path], seconds: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run([str(word) for word in command], text=True, capture_output=True,
                              check=False, timeout=seconds, cwd=ROOT, env=environment())
    except subprocess.TimeoutExpired:
        raise PeerError(f"it was not ready after {seconds:.0f} s") from None


def environment() -> dict[str, str]:
    """Variables of DeepSpeed's processes: no GPU, kernels of its own, and its tools first."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    return kept | {"PATH": f"{PYTHON.parent}:/usr/bin:/bin", "HOME": str(Path.home()),
                   "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu",
                   "TORCH_EXTENSIONS_DIR": str(FOLDER / "kernels")}


def last_line(said: str) -> str:
    """Give the line that names an error: the last one, without the rank before it."""
    lines = [re.sub(r"^\[rank\d+\]: ", "", line).strip() for line in said.splitlines()]
    return next((line for line in reversed(lines) if line), "it said nothing")


@cache
def installed() -> Path:
    """Make the environment where there is none; gives its Python."""
    release = f"import deepspeed.git_version_info as own; assert own.version == '{RELEASE}'"
    if PYTHON.exists() and not _run([PYTHON, "-c", release], PATIENCE_S).returncode:
        return PYTHON
    for command in ((sys.executable, "-m", "venv", "--clear", FOLDER),
                    (PYTHON, "-m", "pip", "install", "-q", f"deepspeed=={RELEASE}", "ninja",
                     f"torch=={torch.__version__.partition('+')[0]}")):
        done = _run(command, INSTALL_S)
        if done.returncode:
            raise PeerError(last_line(done.stderr or done.stdout))
    return PYTHON
