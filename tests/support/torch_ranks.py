"""Ranks of a job of torch, forked from one process that has imported torch.

An import takes seconds of CPU, which a test of four ranks would spend four times. So does that of
torch._dynamo, which DDP and the first step of an optimizer import. The process that is forked from
has one thread and has made no group.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from multiprocessing.connection import Connection

torch = pytest.importorskip("torch")  # so do all that start ranks
IMPORTED = ("torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel",
            "harp.lightcc.torch", "harp.lightcc.horovod.torch", "harp.angelptm", __name__)
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(list(IMPORTED))
under_way: set[Rank] = set()
"""Ranks that nobody has waited for."""


def _begin_forks() -> None:
    """Start the process that is forked from, with one thread; do nothing where it runs."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _become(words: Sequence[str], environment: Mapping[str, str],
            said: Sequence[Connection]) -> None:
    """Run a script as a process of its own would, with its output in two pipes."""
    for number, pipe in zip((1, 2), said, strict=True):
        os.dup2(pipe.fileno(), number)
        pipe.close()
    os.environ.clear()
    os.environ.update(environment)
    multiprocessing.current_process().daemon = False  # a script may start processes of its own
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    warnings.simplefilter("ignore")
    sys.argv = list(words)
    sys.path.append(str(Path(words[0]).parent))
    runpy.run_path(words[0], run_name="__main__")


class Rank:
    """A script in a process of its own, with what tests use of subprocess.Popen."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str],
                 store: object) -> None:
        _begin_forks()
        self._store = store  # which serves all ranks for as long as one is here
        pipes = [FORKS.Pipe(duplex=False) for _ in range(2)]
        self._process = FORKS.Process(target=_become, daemon=True, args=(
            list(words), dict(environment), [write for _, write in pipes]))
        self._process.start()
        for _, write in pipes:
            write.close()
        self.stdout, self.stderr = (os.fdopen(os.dup(read.fileno())) for read, _ in pipes)
        for read, _ in pipes:
            read.close()
        self.returncode: int | None = None
        under_way.add(self)

    def communicate(self, timeout: float = PATIENCE_S) -> tuple[str, str]:
        """Wait for the end; give what was written to stdout and to stderr."""
        under_way.discard(self)
        with self.stdout, self.stderr, ThreadPoolExecutor(2) as pool:
            said = [pool.submit(pipe.read) for pipe in (self.stdout, self.stderr)]
            self._process.join(timeout)
            self.returncode = self._process.exitcode
            if self.returncode is None:
                self._process.kill()
                raise subprocess.TimeoutExpired("a rank", timeout)
            return said[0].result(), said[1].result()

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()

    def leave(self) -> None:
        """End it, and hear nothing of it."""
        under_way.discard(self)
        self.kill()
        self._process.join()
        self.returncode = self._process.exitcode
        for pipe in (self.stdout, self.stderr):
            pipe.close()


def run_alone(program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a script that needs torch, and no other ranks, to its end."""
    command = [str(program), *words]
    alone = Rank(command, {**os.environ, "OMP_NUM_THREADS": "1"}, None)
    out, error = alone.communicate()
    return subprocess.CompletedProcess(command, alone.returncode or 0, out, error)


def start(program: Path, words: str | Sequence[str], ranks: int, **variables: str) -> list[Rank]:
    """Start ranks under torchrun's variables; as torchrun does, this process serves their store."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False,
                                       timeout=timedelta(seconds=PATIENCE_S))
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(ranks),
           "TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}
    command = [str(program), *([words] if isinstance(words, str) else words)]
    return [Rank(command, {**os.environ, **job, "RANK": str(rank), **variables}, store)
            for rank in range(ranks)]


def answers_of(started: Sequence[Rank]) -> list[Any]:
    """Wait for ranks that end well; give what each printed last, of JSON."""
    answers = []
    for rank in started:
        out, error = rank.communicate()
        assert rank.returncode == 0, error
        answers.append(json.loads(out.splitlines()[-1]))
    return answers
