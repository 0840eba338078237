"""Peers of dynamic tables, each in an environment of its own (`bench.peer_environment`)."""

from __future__ import annotations

import json
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.arms import ROOT, read_line
from bench.peer_environment import TORCH, environment, installed, last_line
from bench.subject import PeerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REQUIRED = {
    "tfra": ["tensorflow-recommenders-addons==0.8.1"],  # for TensorFlow 2.16
    # TorchRec itself asks for FBGEMM's kernels for GPUs, which lie in the place of those for CPUs;
    # 1.8.0 of these is for torch 2.13.
    "torchrec": ["torchrec==1.9.2 --no-deps",
                 f"torch=={TORCH} fbgemm-gpu-cpu==1.8.0 iopath numpy pyre-extensions tensordict "
                 "torchmetrics tqdm"],
}
"""Packages for pip to install, one text for each call."""
PATIENCE_S = 300.0


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
        python = installed(self._name, *REQUIRED[self._name])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "ids.npy")
            np.save(path, self._batches)
            self._process = process = subprocess.Popen(
                [python, Path(__file__).with_name("peer_loops.py"), self._name, path, *self._sizes],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                cwd=ROOT, env=environment(TF_CPP_MIN_LOG_LEVEL="2"))
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
