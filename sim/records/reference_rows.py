"""A figure of ours beside what others found, or what a formula gives."""

from __future__ import annotations

from typing import NamedTuple

TOLERANCE = 0.10
"""Largest difference of a row that need not say why."""


class Row(NamedTuple):
    """A figure, ours and theirs."""

    case: str
    figure: str
    ours: float
    low: float
    high: float
    """Bounds of their findings; equal where it is one figure."""
    unit: str
    source: str
    note: str = ""

    @property
    def error(self) -> float:
        """Ours relative to the nearest of theirs."""
        theirs = min(max(self.ours, self.low), self.high)
        return self.ours / theirs - 1.0 if self.ours != theirs else 0.0

    @property
    def off(self) -> bool:
        """Whether it is off by more than `TOLERANCE`."""
        return abs(self.error) > TOLERANCE


class Wire(NamedTuple):
    """Frames of a stack: payload, and what a link carries with it beside."""

    payload: int
    headers: int

    @property
    def whole(self) -> int:
        """A full frame on the line."""
        return self.payload + self.headers

    def on_line(self, nbytes: float) -> float:
        """Bytes that a message of many frames puts on a line."""
        frames, rest = divmod(nbytes, self.payload)
        return frames * self.whole + (rest and rest + self.headers)


JUMBO_HARP = Wire(8832, 110)
"""Of an MTU of 9,000 B: payload is cut to whole 128 B."""
JUMBO_TCP = Wire(8948, 90)


def time_row(case: str, form: str, found_s: float, wanted_s: float, source: str) -> Row:
    """A time beside that of a formula."""
    return Row(case, form, found_s * 1e6, wanted_s * 1e6, wanted_s * 1e6, "us", source)
