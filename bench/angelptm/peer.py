"""DeepSpeed in an environment of its own, build/deepspeed: the first row that needs it makes it.

Its release is fixed, so that a row is the same later; torch is the project's. It is installed from
the registry, and compiles its kernels when it first runs; row disk-ds needs Debian's libaio-dev.
What does not run is a `PeerError` with the last line of what it said.
"""

from __future__ import annotations

import contextlib
import json
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

SWEEP = {"block_size": ["1M", "8M"], "queue_depth": [32, 128], "sequential_requests": [False],
         "single_submit": [False], "io_parallel": [1, 2]}
"""The tuner's own settings, less those that two CPUs do not have and the slow variants."""
RELEASE = "0.19.8"
FOLDER = ROOT / "build" / "deepspeed"
PYTHON = FOLDER / "bin" / "python"
INSTALL_S, PATIENCE_S = 1800.0, 900.0


def _run(command: Sequence[str | Path | float], seconds: float) -> subprocess.CompletedProcess[str]:
    clear_stale_locks()
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


def clear_stale_locks() -> None:
    """Remove locks that killed compilations have left: the next compilation would wait for ever.

    torch.utils.file_baton has the file open as long as it holds the lock.
    """
    found = {str(lock.resolve()): lock for lock in FOLDER.glob("kernels/**/lock")}
    if found:
        for opened in Path("/proc").glob("[0-9]*/fd/*"):
            with contextlib.suppress(OSError):  # its process has ended, or is another user's
                found.pop(str(opened.readlink()), None)
    for lock in found.values():
        lock.unlink(missing_ok=True)


def last_line(said: str) -> str:
    """Give the line that names an error: the last one, without the rank before it."""
    lines = [re.sub(r"^\[rank\d+\]: ", "", line).strip() for line in said.splitlines()]
    return next((line for line in reversed(lines) if line), "it said nothing")


@cache
def installed() -> Path:
    """Make the environment unless it is there, and give its Python."""
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


@cache
def tuned(folder: Path) -> dict[str, object]:
    """Have DeepSpeed tune its reads and writes of a folder; gives what its configuration takes."""
    sweep = FOLDER / "sweep.json"
    installed()
    sweep.write_text(json.dumps(SWEEP))
    done = _run([FOLDER / "bin" / "ds_nvme_tune", "--nvme_dir", folder, "--sweep_config", sweep,
                 "--io_size", "64M", "--log_dir", FOLDER / "tuning"], PATIENCE_S)
    return read_tuning(done.stdout, done.stderr)


def read_tuning(said: str, error: str = "") -> dict[str, object]:
    """Read the best setting that the tuner printed; a part of its keys has other names there."""
    found = re.search(r"\{\s*\"aio\".*\}", said, re.DOTALL)
    if found is None:
        raise PeerError(last_line(error or said))
    kept: dict[str, object] = {
        name: {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
        for name, value in json.loads(found[0])["aio"].items()}
    kept["intra_op_parallelism"] = kept.pop("num_threads", 1)
    return kept


def step_on_disk(folder: Path, seconds: float, *sizes: int) -> float:
    """Give the seconds of a step, optimizer on disk, for layers, width, rows and length."""
    done = _run([installed(), "-m", "bench.angelptm.deepspeed_steps", folder,
                 json.dumps(tuned(folder)), seconds, *sizes], PATIENCE_S)
    for line in done.stdout.splitlines():
        if line.startswith('{"seconds"'):
            return float(json.loads(line)["seconds"])
    raise PeerError(last_line(done.stderr or done.stdout))
