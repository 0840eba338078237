"""What a laboratory has no hardware for: GPUs' links, PCIe, network threads, memory, cloud caps.

Each is a pacer in the process of its host. Bytes reserve it for the time that they take there, at
the lab's scale, and go on when all that they need on this side is free.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence




@dataclass(frozen=True)
class EdgePace:
    """How one edge is paced; all in seconds of the wall clock."""

    out: tuple[tuple[int, float], ...]
    """Resources of the sender's host, and the seconds of each that a byte takes."""
    into: tuple[tuple[int, float], ...]
    """The same at the receiver."""
    message_s: float
    """The stack's cost of a message, one after the other."""
    latency_s: float
    ceiling_s: float
    """Seconds that a byte takes at least."""


class Pacers:
    """The resources of one host."""

    def __init__(self) -> None:
        self._free_s: dict[object, float] = {}

    def reserve(self, nbytes: int, uses: Sequence[tuple[object, float]], now_s: float) -> float:
        """Reserve all of them, and return when the last one is free for these bytes."""
        start_s = max((self._free_s.get(resource, 0.0) for resource, _ in uses), default=0.0)
        start_s = max(start_s, now_s)
        for resource, byte_s in uses:
            self._free_s[resource] = max(self._free_s.get(resource, 0.0), now_s) + nbytes * byte_s
        return start_s


async def sleep_until(when_s: float) -> None:
    """Sleep until the event loop's clock says so."""
    wait_s = when_s - asyncio.get_running_loop().time()
    if wait_s > 0:
        await asyncio.sleep(wait_s)
