"""Known errors of fidelity `flow` by cause, with an interval of the time that each adds.

A cause is a rule about the plan and the routing, never a single case. The interval is the range of
differences between runs at flow and at packet (`sim.validation.correction_runs`; `python -m
sim.validate corrections` repeats them). These runs are none of those of docs/results/fidelities.md.
The answer stays that of the fluid; a note of the row names the cause and the interval.
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
    """Relative difference of packet's time to flow's; negative: shorter."""

    low: float
    high: float

    def in_words(self) -> str:
        """The range in per cent."""
        return f"{100 * self.low:+.0f} % to {100 * self.high:+.0f} %"


class Correction(NamedTuple):
    """A cause, and its interval for each of fidelity packet's stacks."""

    name: str
    why: str
    harp: Interval
    tcp: Interval
    """With kernel TCP at the ends."""
    tcp_beside: str = ""
    """A further effect with kernel TCP that is no share of the time."""

    def interval(self, *, tcp: bool) -> Interval:
        """The interval of HARP or of kernel TCP."""
        return self.tcp if tcp else self.harp

    def sentence(self, *, tcp: bool) -> str:
        """The note below the table."""
        beside = f" {self.tcp_beside}" if tcp and self.tcp_beside else ""
        return (f"{self.name}: {self.interval(tcp=tcp).in_words()} of the time of collectives in "
                f"runs of --fidelity packet. {self.why}{beside}")


FORKS = Correction(
    "forks and joins of trees", "The edges of a rank share its port and its thread, where their "
    "pieces wait for one another.", Interval(-0.14, 0.31), Interval(-0.14, 0.36))
SPRAY = Correction(
    "random spray", "Frames take random links, queues form at links that are full on average, and "
    "congestion control keeps these queues short by sending less.",
    Interval(0.0, 1.26), Interval(-0.01, 0.84))
EXCHANGES = Correction(
    "exchanges in lock step", "Each step waits for its slowest message, so queueing delay adds up "
    "over the steps.", Interval(0.0, 0.34), Interval(-0.06, 0.20),
    "If a full buffer drops the end of a message, TCP waits another 0.2 s.")


_found: WeakKeyDictionary[Phase, dict[tuple[bytes, str], tuple[Correction, ...]]] = (
    WeakKeyDictionary())
"""Causes by phase; every draw of the uncertain parameters needs the same ones."""


def find_corrections(phase: Phase, crosses: NDArray[np.bool_],
                     routing: str) -> tuple[Correction, ...]:
    """Causes at work in a phase; ``crosses`` marks its edges from host to host."""
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
    return bool(np.isin(there, back).any())


def _meets(end: Ranks, group: Ranks, crosses: NDArray[np.bool_]) -> bool:
    """Whether two edges of one tree that go from host to host have this end in common."""
    pairs = np.stack([group, end])[:, crosses]
    return len(np.unique(pairs, axis=1)[0]) < len(pairs[0])
