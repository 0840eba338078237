"""Whose turn it is, for collectives of one job: the coordinator's time, and streams.

Who comes first is served first. simpy's resources say the same with an event for each request and
each release; these need one only where somebody waits, and a step has dozens of collectives.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    import simpy


class Coordinator:
    """Serves one request after the other, as they come."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env, self._free_s = env, 0.0

    def serve(self, seconds: float) -> Generator[simpy.Event, None, float]:
        """Wait until a request is served that takes ``seconds``; return when its turn came."""
        start_s = max(self._env.now, self._free_s)
        self._free_s = start_s + seconds
        if self._free_s > self._env.now:
            yield self._env.timeout(self._free_s - self._env.now)
        return start_s


class Streams:
    """Streams by name, each taken by one collective at a time."""

    def __init__(self, env: simpy.Environment, names: Iterable[str]) -> None:
        self._env, self._idle = env, deque(names)
        self._waiting: deque[simpy.Event] = deque()

    def take(self) -> Generator[simpy.Event, str, str]:
        """Wait for an idle stream and take it."""
        if self._idle:
            return self._idle.popleft()
        turn = self._env.event()
        self._waiting.append(turn)
        return (yield turn)

    def give_back(self, stream: str) -> None:
        """Hand a stream to who has waited longest."""
        if self._waiting:
            self._waiting.popleft().succeed(stream)
        else:
            self._idle.append(stream)
