"""What rank 0 did for each tensor and when, in the format of Horovod's timeline.

A file for chrome://tracing or Perfetto: each tensor is a process with its name; NEGOTIATE_* lasts
from the first rank that asked for it to the decision, with an instant for each rank; the call
itself follows, with the copies from and to the fusion buffer in it.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


class Timeline:
    """Events for a file; nothing is done until `start`. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: Any = None
        self._numbers: dict[str, int] = {}
        self._open: dict[str, int] = {}
        self._cycles = False
        self._began = 0.0

    def start(self, path: str, *, mark_cycles: bool = False) -> None:
        """Begin a file. Raises OSError where it cannot be written, ValueError where one is open."""
        with self._lock:
            if self._file:
                raise ValueError("a timeline is being written; stop_timeline ends it")
            self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115  (stop closes it)
            self._file.write("[")
            self._numbers, self._open = {}, {}
            self._cycles, self._began = mark_cycles, time.monotonic()

    def stop(self) -> None:
        """End the file."""
        with self._lock:
            if self._file:
                self._file.write("\n]\n")
                self._file.close()
                self._file = None

    def negotiate(self, name: str, kind: str) -> None:
        """A rank was the first one to ask for a tensor."""
        self._begin([name], f"NEGOTIATE_{kind.upper()}")

    def rank_is_ready(self, name: str, rank: int) -> None:
        """A rank asked for a tensor."""
        with self._lock:
            if self._file:
                self._write(name, "X", name=str(rank), dur=0)

    def decide(self, names: Iterable[str]) -> None:
        """All ranks have asked."""
        self.end(names)

    def call(self, names: Iterable[str], kind: str) -> None:
        """The call for tensors begins."""
        self._begin(names, kind.upper())

    def activity(self, names: Iterable[str], what: str) -> None:
        """A part of the call begins, and the one before it ends."""
        names = list(names)
        self.end(name for name in names if self._open.get(name, 0) > 1)
        self._begin(names, what)

    def over(self, names: Iterable[str]) -> None:
        """The call is over, with all of its parts."""
        for name in names:
            while self._open.get(name, 0):
                self.end([name])

    def cycle(self) -> None:
        """Rank 0 decides."""
        with self._lock:
            if self._file and self._cycles:
                self._write("CYCLE_START", "i", name="CYCLE_START", s="g")

    def _begin(self, names: Iterable[str], what: str) -> None:
        with self._lock:
            if self._file:
                for name in names:
                    self._open[name] = self._open.get(name, 0) + 1
                    self._write(name, "B", name=what)

    def end(self, names: Iterable[str]) -> None:
        """What was begun last for these tensors is over."""
        with self._lock:
            if self._file:
                for name in names:
                    if self._open.get(name, 0):  # it may have begun before the file did
                        self._open[name] -= 1
                        self._write(name, "E")

    def _write(self, tensor: str, phase: str, **more: Any) -> None:
        if tensor not in self._numbers:
            number = self._numbers[tensor] = len(self._numbers) + 1
            self._line({"name": "process_name", "ph": "M", "pid": number,
                        "args": {"name": tensor}})
            self._line({"name": "process_sort_index", "ph": "M", "pid": number,
                        "args": {"sort_index": number}})
        self._line({"ph": phase, "pid": self._numbers[tensor],
                    "ts": round((time.monotonic() - self._began) * 1e6), **more})

    def _line(self, event: dict[str, Any]) -> None:
        first = self._file.tell() <= 1
        self._file.write(("\n" if first else ",\n") + json.dumps(event))
