"""Decisions, and what torch compiled for them, kept in a folder and carried between ranks.

    FOLDER/decisions.json      decisions by what they were taken for
    FOLDER/artifacts-NAME      torch.compiler.save_cache_artifacts of a process that added to them

A process can save what it compiled or used itself, not what it found in the folder for others; so
each that adds something writes a file of its own.

Rank 0 of a job compiles; the others run eagerly until its decision and artifacts arrive over the
job's store, and then find everything compiled. Nobody waits in a step.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

log = logging.getLogger(__name__)

PATIENCE_S = 900.0
"""Longest wait for rank 0, of the thread that waits; its rank compiles by itself then."""
LOOK_S = 0.2


@dataclass(frozen=True)
class Decision:
    """The decision for calls of one key."""

    dimensions: tuple[tuple[int, int], ...] = ()
    """Dimensions of arguments that vary together and are padded."""
    results: tuple[tuple[int, int], ...] = ()
    """Dimensions of results that lose the padding again."""
    buckets: tuple[int, ...] = ()
    """None: a dynamic dimension, or nothing varies."""
    varies: bool = False
    eager: bool = False
    """Nothing that was tried pays."""
    why: str = ""
    floats: tuple[int, ...] = ()
    """Leaves that are floats and change."""
    counters: tuple[tuple[int, str], ...] = ()
    """Numbers that change: in modules by their places, or in an optimizer's groups."""

    @classmethod
    def of(cls, record: dict[str, Any]) -> Decision:
        """Read what JSON made of it."""
        return cls(**{name: _in_tuples(value) for name, value in record.items()})


def _in_tuples(value: Any) -> Any:
    return tuple(map(_in_tuples, value)) if isinstance(value, list | tuple) else value


def fingerprint(tensors: dict[str, Any], *texts: str) -> str:
    """Name tensors' shapes and what texts say, the same in every process."""
    shapes = [(name, str(value.dtype), tuple(value.shape)) for name, value in tensors.items()
              if torch.is_tensor(value)]
    text = repr((torch.__version__, *texts, shapes))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


class Kept:
    """A folder of decisions, or none, and the job's store, or none."""

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self._folder = Path(folder) if folder is not None else None
        self._known: dict[str, Decision] = {}
        self._file = f"artifacts-{uuid.uuid4().hex[:12]}"
        if self._folder is not None and (self._folder / "decisions.json").exists():
            self._load(self._folder)

    def _load(self, folder: Path) -> None:
        try:
            self._known = self._read(folder)
            for file in sorted(folder.glob("artifacts-*")):
                torch.compiler.load_cache_artifacts(file.read_bytes())
        except (ValueError, KeyError, TypeError, OSError, RuntimeError, EOFError) as error:
            self._known = {}
            log.warning("%s holds no decisions that can be read (%s); they are taken anew", folder,
                        error)

    @staticmethod
    def _read(folder: Path) -> dict[str, Decision]:
        records = json.loads((folder / "decisions.json").read_text())
        return {name: Decision.of(record) for name, record in records.items()}

    @property
    def first(self) -> bool:
        """Whether this rank compiles for others."""
        return self._ranks() == 1 or dist.get_rank() == 0

    def get(self, name: str) -> Decision | None:
        """Give what was decided before, if it was."""
        return self._known.get(name)

    def add(self, name: str, decision: Decision) -> None:
        """Keep a decision and all that was compiled so far, and send it to the other ranks."""
        self._known[name] = decision
        artifacts = torch.compiler.save_cache_artifacts()
        data = artifacts[0] if artifacts else b""
        if self._folder is not None and self.first:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._write(self._file, data)
            with suppress(ValueError, KeyError, TypeError, OSError):
                self._known = {**self._read(self._folder), **self._known}  # another process's
            records = {known: asdict(value) for known, value in self._known.items()}
            self._write("decisions.json", json.dumps(records, indent=1).encode())
        if self._ranks() > 1 and self.first:
            self._store().set(f"harp.ttf.compile/{name}", pickle.dumps((decision, data)))

    def _write(self, file: str, data: bytes) -> None:
        assert self._folder is not None
        fresh = self._folder / f".{file}.{os.getpid()}"
        fresh.write_bytes(data)
        fresh.replace(self._folder / file)

    def from_first_rank(self, name: str) -> Decision | None:
        """Wait for rank 0's decision and artifacts, in a thread; nothing on rank 0 itself."""
        if self.first:
            return None
        store, until = self._store(), time.monotonic() + PATIENCE_S
        while not store.check([f"harp.ttf.compile/{name}"]):
            if not threading.main_thread().is_alive():
                raise RuntimeError("the program ended before rank 0 decided")
            if time.monotonic() > until:
                log.warning("rank 0 decided nothing for %g s; this rank compiles by itself",
                            PATIENCE_S)
                return None
            time.sleep(LOOK_S)
        self._known[name], data = pickle.loads(store.get(f"harp.ttf.compile/{name}"))
        if data:
            torch.compiler.load_cache_artifacts(data)
        return self._known[name]

    @staticmethod
    def _ranks() -> int:
        return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1

    @staticmethod
    def _store() -> Any:
        return dist.distributed_c10d._get_default_store()
