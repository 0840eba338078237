"""Pacers for the hardware that a laboratory lacks: GPU links, PCIe, threads, memory, cloud caps.

Each is a pacer in the process of its host. Bytes reserve it for the time that they take there, at
the lab's scale, and go on when all that they need on this side is free.

A piece that comes from another host is reported when all of it has come, but its bytes were worked
on as they came. So its work fills the time in which a pacer was idle meanwhile, and only what does
not fit delays the piece, and what comes after it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_GAPS = 64
"""Times without work that a pacer remembers, the latest ones."""


@dataclass(frozen=True)
class EdgePace:
    """Pace of one edge; all in seconds of the wall clock."""

    out: tuple[tuple[int, float], ...]
    """Resources of the sender's host, and the seconds of each that a byte takes."""
    into: tuple[tuple[int, float], ...]
    """The same at the receiver."""
    message_s: float
    """Cost of a message for the proxy thread of either process."""
    threads: tuple[int, int] | None
    """Resources that this time is taken from, the sender's and the receiver's, where the proxies
    move the bytes as well."""
    latency_s: float
    ceiling_s: float
    """Seconds that a byte takes at least."""
    line_s: float = 0.0
    """Seconds that a byte takes on the slowest link of its way."""
    links_s: float = 0.0
    """Seconds that a byte takes on all links of its way together."""
    frame_bytes: int = 0
    """Payload of a frame, which each link takes whole before the next one does."""

    def way_s(self, nbytes: int) -> float:
        """Delay after which bytes that the kernel brought count as arrived.

        Beside the latencies that is a frame's time on each link: tbf lets the first one after a
        pause through at once.
        """
        return self.latency_s + min(nbytes, self.frame_bytes) * self.links_s


class Pacer:
    """One resource."""

    def __init__(self) -> None:
        self.free_s = 0.0
        """End of all that was asked of it."""
        self.asked_s = 0.0
        """The time that all this takes."""
        self._gaps = deque[tuple[float, float]](maxlen=MOST_GAPS)

    def work(self, work_s: float, now_s: float) -> None:
        """Take so much time, as soon as what came before is done."""
        self._idle_until(now_s)
        self.asked_s += work_s
        self.free_s += work_s

    def work_since(self, began_s: float, work_s: float, now_s: float) -> None:
        """Take so much time for what has been there since then: time without work is used first."""
        self._idle_until(now_s)
        self.asked_s += work_s
        gaps, self._gaps = self._gaps, deque(maxlen=MOST_GAPS)
        for first_s, last_s in gaps:
            start_s = min(max(first_s, began_s), last_s)
            used_s = min(work_s, last_s - start_s)
            work_s -= used_s
            self._gaps.extend(gap for gap in ((first_s, start_s), (start_s + used_s, last_s))
                              if gap[0] < gap[1])
        self.free_s += work_s

    def _idle_until(self, now_s: float) -> None:
        if now_s > self.free_s:
            self._gaps.append((self.free_s, now_s))
            self.free_s = now_s


class Line:
    """A line that brings pieces to a host: those that end together have shared it before."""

    def __init__(self) -> None:
        self._busy = deque[tuple[float, float]](maxlen=MOST_GAPS)

    def began_s(self, took_s: float, now_s: float) -> float:
        """Begin of a piece that took this much of the line until now, beside others."""
        while self._busy and self._busy[-1][1] > now_s - took_s:
            first_s, last_s = self._busy.pop()
            took_s += last_s - first_s
        self._busy.append((now_s - took_s, now_s))
        return now_s - took_s


class Pacers:
    """The resources of one host."""

    def __init__(self) -> None:
        self._pacers: dict[object, Pacer] = {}
        self._lines: dict[object, Line] = {}

    def reserve(self, nbytes: int, uses: Sequence[tuple[object, float]], now_s: float) -> float:
        """Reserve all of them, and return when the last one is free for these bytes."""
        start_s = now_s
        for resource, byte_s in uses:
            pacer = self._pacer(resource)
            start_s = max(start_s, pacer.free_s)
            pacer.work(nbytes * byte_s, now_s)
        return start_s

    def catch_up(self, nbytes: int, uses: Sequence[tuple[object, float]], line: object,
                 line_s: float, now_s: float) -> float:
        """Work on bytes that have come over a line until now; return when the last one is done."""
        done_s = now_s
        began_s = self._lines.setdefault(line, Line()).began_s(nbytes * line_s, now_s)
        for resource, byte_s in uses:
            pacer = self._pacer(resource)
            pacer.work_since(began_s, nbytes * byte_s, now_s)
            done_s = max(done_s, pacer.free_s)
        return done_s

    def handle(self, proxy: object, thread: object | None, cost_s: float, now_s: float) -> float:
        """Let a proxy handle a message, one after the other; return when it is done.

        The bytes that its thread has taken on for later do not delay it.
        """
        if not cost_s:
            return now_s
        if thread is not None:
            self._pacer(thread).work(cost_s, now_s)
        pacer = self._pacer(proxy)
        pacer.work(cost_s, now_s)
        return pacer.free_s

    def asked_s(self) -> dict[int, float]:
        """The time that everything asked of each of the cluster's resources takes."""
        return {resource: pacer.asked_s for resource, pacer in self._pacers.items()
                if isinstance(resource, int)}

    def _pacer(self, resource: object) -> Pacer:
        return self._pacers.setdefault(resource, Pacer())


async def sleep_until(when_s: float) -> None:
    """Sleep until the event loop's clock says so."""
    wait_s = when_s - asyncio.get_running_loop().time()
    if wait_s > 0:
        await asyncio.sleep(wait_s)
