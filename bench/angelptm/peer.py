"""DeepSpeed in an environment of its own (`bench.peer_environment`), with the project's torch.

It compiles its kernels when it first runs; row disk-ds needs Debian's libaio-dev.
"""

from __future__ import annotations

import contextlib
import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bench import peer_environment
from bench.subject import PeerError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

SWEEP = {"block_size": ["1M", "8M"], "queue_depth": [32, 128], "sequential_requests": [False],
         "single_submit": [False], "io_parallel": [1, 2]}
"""The tuner's own settings, less those that two CPUs do not have and the slow variants."""
RELEASE = "0.19.8"
NAME = "deepspeed"
FOLDER = peer_environment.folder_of(NAME)
PATIENCE_S = 900.0


def _run(command: Sequence[str | Path | float], seconds: float) -> subprocess.CompletedProcess[str]:
    clear_stale_locks()
    return peer_environment.run(command, seconds, environment())


def environment() -> dict[str, str]:
    """Variables of DeepSpeed's processes: kernels of its own, and its tools first."""
    return peer_environment.environment(
        PATH=f"{FOLDER / 'bin'}:/usr/bin:/bin", DS_ACCELERATOR="cpu",
        TORCH_EXTENSIONS_DIR=str(FOLDER / "kernels"))


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


def installed() -> Path:
    """Make the environment unless it is there, and give its Python."""
    return peer_environment.installed(
        NAME, f"deepspeed=={RELEASE} ninja torch=={peer_environment.TORCH}")


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
        raise PeerError(peer_environment.last_line(error or said))
    kept: dict[str, object] = {
        name: {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
        for name, value in json.loads(found[0])["aio"].items()}
    kept["intra_op_parallelism"] = kept.pop("num_threads", 1)
    return kept


def _seconds_of(command: Sequence[str | Path | float]) -> float:
    """Give the seconds that one of our scripts has measured under DeepSpeed's Python."""
    done = _run(command, PATIENCE_S)
    for line in done.stdout.splitlines():
        if line.startswith('{"seconds"'):
            return float(json.loads(line)["seconds"])
    raise PeerError(peer_environment.last_line(done.stderr or done.stdout))


def step_on_disk(folder: Path, seconds: float, *sizes: int) -> float:
    """Give the seconds of a step, optimizer on disk, for layers, width, rows and length."""
    return _seconds_of([installed(), "-m", "bench.angelptm.deepspeed_steps", folder,
                        json.dumps(tuned(folder)), seconds, *sizes])


def adam_step(cpu: int, seconds: float) -> float:
    """Give the seconds of a step of its optimizer, on one CPU."""
    return _seconds_of(["taskset", "-c", cpu, installed(), "-m", "bench.angelptm.deepspeed_parts",
                        "adam", seconds])


def pages_moved(what: str, folder: Path, seconds: float) -> float:
    """Give the seconds of a ``read`` or ``write`` of all pages by DeepNVMe, as it has tuned it."""
    return _seconds_of([installed(), "-m", "bench.angelptm.deepspeed_parts", what, seconds, folder,
                        json.dumps(tuned(folder))])
