"""simpy's clock tied to the wall clock, at a scale.

A simulated second lasts ``1 / scale`` real ones: links that run at a hundredth of their rate take a
hundred times as long, and so must everything else. Events from outside the simulation make a file
readable.
"""

from __future__ import annotations

import math
import selectors
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import simpy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO


class WallClock(simpy.Environment):
    """An environment whose ``now`` is the time that has passed, in simulated seconds."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.events = 0
        self._origin_s = 0.0
        self._watched = selectors.DefaultSelector()

    def watch(self, file: IO[bytes], arrived: Callable[[], None]) -> None:
        """Call ``arrived`` whenever ``file`` is readable."""
        self._watched.register(file, selectors.EVENT_READ, arrived)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let the clock stand still meanwhile."""
        began_s = time.monotonic()
        yield
        self._origin_s += time.monotonic() - began_s

    def run(self, until: Any = None) -> Any:
        """Run; time that passed since the last run does not count."""
        self._origin_s = time.monotonic() - self.now / self.scale
        return super().run(until)

    def step(self) -> None:
        """Wait for the next event, or for a file that brings one about, and process it."""
        while (wait_s := (self.peek() - self._elapsed()) / self.scale) > 0:
            timeout_s = None if math.isinf(wait_s) else wait_s
            if timeout_s is None and not self._watched.get_map():
                break  # nobody could wake us: simpy says that nothing is left
            for key, _ in self._watched.select(timeout_s):
                self._now = max(self._now, min(self._elapsed(), self.peek()))
                key.data()
        self.events += 1
        super().step()

    def _elapsed(self) -> float:
        return (time.monotonic() - self._origin_s) * self.scale
