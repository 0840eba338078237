"""simpy's clock with a limit: a simulation that would go on and on ends with a sentence instead."""

from __future__ import annotations

import simpy

MOST_EVENTS = 200_000
"""Events of one simulation: steps of training that differ, or faults that come and go."""


class TooLongError(RuntimeError):
    """A simulation had more than `MOST_EVENTS` events; the message says how far it came."""


class Clock(simpy.Environment):
    """An environment that counts its events."""

    def __init__(self) -> None:
        super().__init__()
        self.events = 0

    def step(self) -> None:
        """Process the next event; raises TooLongError where there were too many."""
        self.events += 1
        if self.events > MOST_EVENTS:
            raise TooLongError(f"{MOST_EVENTS:,} events by {self.now:.4g} s")
        super().step()


class Recorder(Clock):
    """Writes down when events happen."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def step(self) -> None:
        """Note the next event's time and process it."""
        self.times.append(self.peek())
        super().step()
