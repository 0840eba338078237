"""Goodput over time: when traffic is back after a fault, and at which rate."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

BIN_S = 0.01
"""Length of a bin."""
STRETCH = 5
"""Bins that must reach a target together before traffic counts as back: one alone may hold the
bytes of a message that was waiting for its rest."""
LATE_S = 0.004


@dataclass
class Trace:
    """Payload that the receiver got, in bins of 10 ms."""

    bits: list[float] = field(default_factory=list)
    """Of each bin."""

    def bps(self, begin_s: float, end_s: float) -> float:
        """Mean goodput from the bin of ``begin_s`` up to the bin of ``end_s``, exclusive."""
        some = self.bits[round(begin_s / BIN_S):round(end_s / BIN_S)]
        return sum(some) / (len(some) * BIN_S) if some else 0.0

    def back_after(self, since_s: float, until_s: float, target_bps: float) -> float:
        """Seconds from ``since_s`` to the end of the first bin that reaches a target to stay.

        That is a bin that reaches it and begins a stretch that does, too. Infinity if none does.
        """
        first, last = round(since_s / BIN_S), min(round(until_s / BIN_S), len(self.bits))
        need = target_bps * BIN_S
        for at in range(first, last):
            stretch = self.bits[at:min(at + STRETCH, last)]
            if self.bits[at] >= need and sum(stretch) >= need * len(stretch):
                return (at + 1 - first) * BIN_S
        return float("inf")


class Run(NamedTuple):
    """The result of a scene."""

    trace: Trace
    signs_s: list[float]
    """Times of retransmissions."""
    capacity_bps: float
    """Goodput of both ports."""
    lost_bytes: int
    """Bytes that did not arrive, or arrived wrong, by the end of the traffic."""
    error: str
    """The reason if the connection ended, or empty."""
    moments_s: list[float]
    """Times of the moments."""
    late: float = 0.0
    """Share of the time that passed in gaps of more than `LATE_S` between two samples, which should
    follow twice a millisecond; by the clock of the wall only."""


class Sample(NamedTuple):
    """The counters at one time."""

    at_s: float
    received: int
    """Bytes."""
    again: int
    """Number of retransmissions."""


def bins_of(samples: list[Sample], end_s: float) -> Trace:
    """Payload by bins; bytes between two samples are spread evenly over that time."""
    bits = [0.0] * round(end_s / BIN_S)
    for early, late in pairwise(samples):
        came = (late.received - early.received) * 8
        first, last = early.at_s / BIN_S, late.at_s / BIN_S
        for at in range(int(first), min(int(last) + 1, len(bits))):
            bits[at] += came * (min(last, at + 1) - max(first, at)) / (last - first)
    return Trace(bits)


def lateness(samples: list[Sample]) -> float:
    """Share of the time that passed in gaps of more than `LATE_S`."""
    gaps_s = [late.at_s - early.at_s for early, late in pairwise(samples)]
    return sum(gap_s for gap_s in gaps_s if gap_s > LATE_S) / sum(gaps_s)
