"""The timeline of rank 0: what was done for each tensor and when, in Horovod's format.

A file for chrome://tracing or Perfetto: each tensor is a process with its name. NEGOTIATE_* lasts
from the first rank that asked for it to the decision, with an event of no length for each rank;
the call itself follows, with its activities in it; type and shape of the result stand at its
end. The file is whole JSON after each event, so that it can be read after the job was killed; a
kill in the middle of an event that crosses a page leaves the half of it that Linux has written.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

END = b"\n]\n"
log = logging.getLogger("harp.horovod")


@dataclass
class _Track:
    """Events of one tensor: one thing at a time, in the order of `_STEPS`."""

    number: int
    state: str = ""
    """The last open step: ``negotiation``, ``call``, or ``activity`` in a call."""
    later: list[tuple[str, Any]] = field(default_factory=list)
    """Steps that came while a call was under way here and over at other ranks."""

    def take(self, step: str, what: Any) -> list[dict[str, Any]]:
        """Give the events of a step, which may be none: a file can begin amid a call."""
        in_call = self.state in {"call", "activity"}
        if in_call and step != "over" and (self.later or step != "activity"):
            self.later.append((step, what))
            return []
        events: list[dict[str, Any]] = _STEPS[step](self, what)
        return events

    def _negotiate(self, kind: str) -> list[dict[str, Any]]:
        return [] if self.state else self._begin_event("negotiation", f"NEGOTIATE_{kind.upper()}")

    def _rank_is_ready(self, rank: int) -> list[dict[str, Any]]:
        return [{"ph": "X", "name": str(rank), "dur": 0}] if self.state else []

    def _decide(self, _: None) -> list[dict[str, Any]]:
        return self._end_event("") if self.state else []

    def _call(self, kind: str) -> list[dict[str, Any]]:
        return [*self._decide(None), *self._begin_event("call", kind.upper())]

    def _activity(self, what: str) -> list[dict[str, Any]]:
        before = self._end_event("call") if self.state == "activity" else []
        return before + self._begin_event("activity", what) if self.state == "call" else before

    def _over(self, result: dict[str, str]) -> list[dict[str, Any]]:
        events = self._end_event("call") if self.state == "activity" else []
        if self.state == "call":
            events += self._end_event("", **({"args": result} if result else {}))
        later, self.later = self.later, []
        for step, what in later:
            events += self.take(step, what)
        return events

    def _begin_event(self, state: str, name: str) -> list[dict[str, Any]]:
        self.state = state
        return [{"ph": "B", "name": name}]

    def _end_event(self, state: str, **more: Any) -> list[dict[str, Any]]:
        self.state = state
        return [{"ph": "E", **more}]


_STEPS: dict[str, Any] = {
    "negotiate": _Track._negotiate, "rank_is_ready": _Track._rank_is_ready,
    "decide": _Track._decide, "call": _Track._call, "activity": _Track._activity,
    "over": _Track._over}


class _File:
    """Events on a disk. All methods but `open` need the `lock`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.tracks: dict[str, _Track] = {}
        self.marks_cycles = False
        self.descriptor = -1
        self._length, self._began = 0, 0.0

    def open(self, path: str, *, mark_cycles: bool) -> None:
        with self.lock:
            if self.descriptor >= 0:
                raise ValueError("a timeline is being written; stop_timeline ends it")
            self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC,
                                      0o666)
            self.tracks, self.marks_cycles = {}, mark_cycles
            self._length, self._began = 0, time.monotonic()
            self.write(_name_process(0, start_time_since_epoch_in_micros=time.time_ns() // 1000))

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def track(self, name: str) -> _Track:
        if name not in self.tracks:
            self.tracks[name] = _Track(len(self.tracks) + 1)
            self.write(_name_process(self.tracks[name].number, name=name))
        return self.tracks[name]

    def now_us(self) -> int:
        return round((time.monotonic() - self._began) * 1e6)

    def write(self, events: Sequence[dict[str, Any]]) -> None:
        """Put events in the place of the end, with an end, in one call."""
        if not events or self.descriptor < 0:
            return
        text = json.dumps(events)[1:-1].encode()
        text = (b",\n" if self._length else b"[\n") + text
        try:
            self._write_text(text + END)
            self._length += len(text)
        except OSError as error:
            log.warning("the timeline ends here, since it cannot be written: %s", error.strerror)
            with contextlib.suppress(OSError):
                self._write_text(END)
                os.ftruncate(self.descriptor, self._length + len(END))
            self.close()

    def _write_text(self, text: bytes) -> None:
        at = 0
        while at < len(text):  # once, unless a disk is full
            at += os.pwrite(self.descriptor, text[at:], self._length + at)


def _name_process(number: int, **args: Any) -> list[dict[str, Any]]:
    return [{"name": "process_name", "ph": "M", "pid": number, "args": args},
            {"name": "process_sort_index", "ph": "M", "pid": number,
             "args": {"sort_index": number}}]


class Timeline:
    """Events for a file; nothing is done until `start`. Any thread."""

    def __init__(self) -> None:
        self._file, self._prefix = _File(), ""

    def of_set(self, number: int) -> Timeline:
        """Give what writes to the same file for a set of ranks, which has names of its own."""
        made = Timeline()
        made._file, made._prefix = self._file, f"set {number}: "
        return made

    @property
    def is_written(self) -> bool:
        """Whether events are written to a file."""
        return self._file.descriptor >= 0

    def start(self, path: str, *, mark_cycles: bool = False) -> None:
        """Begin a file. Raises OSError where it cannot be written, ValueError where one is open."""
        self._file.open(path, mark_cycles=mark_cycles)

    def stop(self) -> None:
        """End the file."""
        with self._file.lock:
            self._file.close()

    def negotiate(self, kinds: Mapping[str, str]) -> None:
        """A rank was the first one to ask for tensors, each by a kind of call."""
        self._record("negotiate", kinds)

    def rank_is_ready(self, names: Iterable[str], rank: int) -> None:
        """A rank asked for tensors."""
        self._record("rank_is_ready", dict.fromkeys(names, rank))

    def decide(self, names: Iterable[str]) -> None:
        """All ranks have asked."""
        self._record("decide", dict.fromkeys(names))

    def call(self, names: Iterable[str], kind: str) -> None:
        """The call for tensors begins."""
        self._record("call", dict.fromkeys(names, kind))

    def activity(self, names: Iterable[str], what: str) -> None:
        """A part of the call begins, and the one before it ends."""
        self._record("activity", dict.fromkeys(names, what))

    def over(self, results: Mapping[str, dict[str, str]]) -> None:
        """The call is over, with all of its parts; its events end with its results."""
        self._record("over", results)

    def cycle(self) -> None:
        """Rank 0 decides."""
        with self._file.lock:
            if self._file.marks_cycles:
                self._file.write([{"ph": "i", "name": "CYCLE_START", "ts": self._file.now_us(),
                                   "s": "g"}])

    def _record(self, step: str, of_tensors: Mapping[str, Any]) -> None:
        if not self.is_written:
            return
        with self._file.lock:
            now_us, events = self._file.now_us(), []
            for name, what in of_tensors.items():
                track = self._file.track(self._prefix + name)
                events += [{"pid": track.number, "ts": now_us, **event}
                           for event in track.take(step, what)]
            self._file.write(events)
