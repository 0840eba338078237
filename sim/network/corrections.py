"""What fidelity `flow` is known to leave out, by cause, and how much longer it makes a collective.

A cause is a rule about what runs, never a case. How much longer packets take is an interval: the
least and the most of runs at both fidelities (`sim.validation.correction_runs`), none of which
docs/fidelities.md judges; `python -m sim.validate corrections` makes them again. The answer stays
what the fluid says; a note of the row names the cause and the interval.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from harp.collectives.ir import Phase

    Ranks = NDArray[np.int32]


class Interval(NamedTuple):
    """Shares by which packets take longer; below zero: less long."""

    low: float
    high: float

    def in_words(self) -> str:
        """Return a range of per cents."""
        return f"{100 * self.low:+.0f} % to {100 * self.high:+.0f} %"


class Correction(NamedTuple):
    """A cause, and what it makes of the ends that fidelity packet has."""

    name: str
    why: str
    harp: Interval
    tcp: Interval
    """With kernel TCP at the ends."""
    tcp_beside: str = ""
    """What may come on top with kernel TCP, as no share of the time."""

    def interval(self, *, tcp: bool) -> Interval:
        """Of one of the ends."""
        return self.tcp if tcp else self.harp

    def sentence(self, *, tcp: bool) -> str:
        """Say it to who reads the answer."""
        beside = f"; {self.tcp_beside}" if tcp and self.tcp_beside else ""
        return (f"{self.name}: {self.interval(tcp=tcp).in_words()} of the time of collectives in "
                f"runs of --fidelity packet, since {self.why}{beside}")


FORKS = Correction(
    "forks and joins of trees", "a rank's edges share its port and its thread, where pieces wait "
    "for one another", Interval(-0.14, 0.31), Interval(-0.14, 0.36))
SPRAY = Correction(
    "random spray", "frames draw their links at random, queues form where links are full on "
    "average, and congestion control keeps them short by sending less",
    Interval(0.0, 1.26), Interval(-0.01, 0.84))
EXCHANGES = Correction(
    "exchanges in lock step", "queues where flows meet are latency to steps that follow one "
    "another, and a step lasts as long as its slowest message", Interval(0.0, 0.34),
    Interval(-0.06, 0.20), "where a full buffer drops the end of a message, TCP waits 0.2 s more")


_found: WeakKeyDictionary[Phase, dict[tuple[bytes, str], tuple[Correction, ...]]] = (
    WeakKeyDictionary())
"""Kept, since every draw of what is uncertain asks for the same."""


def find_corrections(phase: Phase, crosses: NDArray[np.bool_],
                     routing: str) -> tuple[Correction, ...]:
    """Causes that concern a phase, of whose edges some go from host to host."""
    known = _found.setdefault(phase, {})
    key = crosses.tobytes(), routing
    if key not in known:
        known[key] = tuple(_search_causes(phase, crosses, routing))
    return known[key]


def _search_causes(phase: Phase, crosses: NDArray[np.bool_],
                   routing: str) -> Iterator[Correction]:
    if not crosses.any():
        return
    if routing == "spray":
        yield SPRAY
    if phase.pipelined and not phase.is_ring and any(
            _meets(end, phase.group, crosses) for end in (phase.src, phase.dst)):
        yield FORKS
    if not phase.pipelined and _exchanges(phase.src[crosses], phase.dst[crosses]):
        yield EXCHANGES


def _exchanges(src: Ranks, dst: Ranks) -> bool:
    """Whether two ranks send to each other."""
    most = max(int(src.max()), int(dst.max())) + 1
    there, back = (one.astype(np.int64) * most + other for one, other in ((src, dst), (dst, src)))
    return len(np.intersect1d(there, back)) > 0


def _meets(end: Ranks, group: Ranks, crosses: NDArray[np.bool_]) -> bool:
    """Whether two edges of one tree that go from host to host have this end in common."""
    pairs = np.stack([group, end])[:, crosses]
    return len(np.unique(pairs, axis=1)[0]) < len(pairs[0])
