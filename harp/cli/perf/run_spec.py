"""What ``harp perf`` runs at both ends, over HARP (perf_ends) and over kernel TCP (perf_tcp)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence
    from concurrent.futures import Future

DEAD_S = 5.0
SLICE_NS = 50_000_000
"""For so long C works before Python looks for signals."""
ROLES = {"send": 0, "receive": 1, "ping": 2, "pong": 3}
OTHER = {"send": "receive", "ping": "pong"}


@dataclass(frozen=True)
class Run:
    """One run of all engines or sockets, as one end plays it."""

    role: str
    size: int
    messages: int
    """Of each engine or socket."""
    window: int

    @property
    def others(self) -> dict[str, Any]:
        """The same for the other end."""
        return {"role": OTHER[self.role], "size": self.size, "messages": self.messages,
                "window": self.window}


@dataclass
class Outcome:
    """What a run took here; nanoseconds."""

    elapsed_ns: int = 0
    cpu_ns: int = 0
    round_trips_ns: list[int] = field(default_factory=list)


def outcome_of(begun: Sequence[Future[tuple[Any, Any]]], stop: threading.Event) -> Outcome:
    """Wait for all threads of a run: pairs of what C counted and round trips.

    Raises what ended one of them, after it has told the others to stop.
    """
    try:
        done = [future.result() for future in begun]
    except BaseException:
        stop.set()
        raise
    return Outcome(max(p.end_ns for p, _ in done) - min(p.begin_ns for p, _ in done),
                   sum(p.cpu_ns for p, _ in done),
                   [int(ns) for _, samples in done for ns in samples])
