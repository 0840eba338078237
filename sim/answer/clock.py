"""simpy's clock with a limit: instead of running for ever, a simulation ends with an error."""

from __future__ import annotations

import simpy

MOST_EVENTS = 200_000
"""Events of one simulation: steps of training that differ, or faults that come and go."""


class TooLongError(RuntimeError):
    """A simulation had more than `MOST_EVENTS` events; the message gives the simulated time."""


class Clock(simpy.Environment):
    """An environment that counts its events and allows ``most``, or `MOST_EVENTS`."""

    def __init__(self, most: float | None = None) -> None:
        super().__init__()
        self.events, self._most = 0, MOST_EVENTS if most is None else most

    def step(self) -> None:
        """Process the next event; raises TooLongError after too many."""
        self.events += 1
        if self.events > self._most:
            raise TooLongError(f"{self._most:,} events by {self.now:.4g} s")
        super().step()


class Recorder(Clock):
    """Records the times of events."""

    def __init__(self, most: float | None = None) -> None:
        super().__init__(most)
        self.times: list[float] = []

    def step(self) -> None:
        """Record the next event's time and process it."""
        self.times.append(self.peek())
        super().step()
