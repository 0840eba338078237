"""Peers of dynamic tables, each in an environment of its own: build/NAME, made when a row needs it.

Their releases are fixed, so that a row is the same later. A peer that cannot be installed, or does
not run, is a `PeerError` with the last line of what it said; its row names it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bench.angelptm.peer import last_line
from bench.arms import ROOT, read_line
from bench.subject import PeerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TORCH = torch.__version__.partition("+")[0]
REQUIRED = {
    "tfra": [["tensorflow-recommenders-addons==0.8.1"]],  # for TensorFlow 2.16
    # TorchRec itself asks for FBGEMM's kernels for GPUs, which lie in the place of those for CPUs;
    # 1.8.0 of these is for torch 2.13.
    "torchrec": [["torchrec==1.9.2", "--no-deps"],
                 [f"torch=={TORCH}", "fbgemm-gpu-cpu==1.8.0", "iopath", "numpy", "pyre-extensions",
                  "tensordict", "torchmetrics", "tqdm"]],
}
"""Packages for pip to install, one list for each call."""
INSTALL_S, PATIENCE_S = 1800.0, 300.0


def environment() -> dict[str, str]:
    """Variables of a peer's processes: no GPU, and no path of this environment."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    return kept | {"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "CUDA_VISIBLE_DEVICES": "",
                   "TF_CPP_MIN_LOG_LEVEL": "2"}


def _run(*command: str | Path) -> None:
    try:
        done = subprocess.run(command, text=True, capture_output=True, check=False,
                              timeout=INSTALL_S, cwd=ROOT, env=environment())
    except subprocess.TimeoutExpired:
        raise PeerError(f"it was not installed after {INSTALL_S:.0f} s") from None
    if done.returncode:
        raise PeerError(last_line(done.stderr or done.stdout))


@cache
def installed(name: str) -> Path:
    """Make a peer's environment unless it is there, and give its Python."""
    folder = ROOT / "build" / name
    python, stamp = folder / "bin" / "python", folder / "stamp"
    required = "\n".join(map(" ".join, REQUIRED[name]))
    if not (stamp.exists() and stamp.read_text("utf-8") == required):
        _run(sys.executable, "-m", "venv", "--clear", folder)
        for words in REQUIRED[name]:
            _run(python, "-m", "pip", "install", "-q", *words)
        stamp.write_text(required, encoding="utf-8")
    return python


class Peer:
    """A peer that obeys commands (peer_loops.py); it is started when it is first asked."""

    def __init__(self, name: str, batches: np.ndarray, rows: int, dim: int) -> None:
        self._name, self._batches, self._sizes = name, batches, (str(rows), str(dim))
        self._process: subprocess.Popen[str] | None = None

    def ask(self, do: str, seconds: float) -> float:
        """Give the ids a second. PeerError."""
        process = self._process or self._started()
        assert process.stdin is not None
        process.stdin.write(json.dumps({"do": do, "seconds": seconds}) + "\n")
        process.stdin.flush()
        found: dict[str, Any] = json.loads(self._line(process))
        return float(found["ids"] / found["seconds"])

    def _started(self) -> subprocess.Popen[str]:
        python = installed(self._name)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "ids.npy")
            np.save(path, self._batches)
            self._process = process = subprocess.Popen(
                [python, Path(__file__).with_name("peer_loops.py"), self._name, path, *self._sizes],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                cwd=ROOT, env=environment())
            self._line(process)  # "ready"
        return process

    def _line(self, process: subprocess.Popen[str]) -> str:
        line = read_line(process, PATIENCE_S)
        if not line:
            self._process = None
            process.kill()
            raise PeerError(last_line(process.communicate()[1]))
        return line

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


@contextmanager
def peer(name: str, batches: np.ndarray, rows: int, dim: int,
         ) -> Iterator[Callable[[str, float], float]]:
    """Give a peer's `ask`."""
    made = Peer(name, batches, rows, dim)
    try:
        yield made.ask
    finally:
        made.close()
