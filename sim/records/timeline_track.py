"""One track of a job's timeline: let time pass and record its use."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sim.records.results import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    import simpy

    from sim.records.results import SpanKind


class Timeline(NamedTuple):
    """Records the spans of one track; see `Span` for the names of tracks."""

    env: simpy.Environment
    record: Callable[[Span], None]
    track: str
    names_limits: bool = True
    """Whether its transfers say what holds them back, which takes time where many run at once."""

    def wait(self, seconds: float, kind: SpanKind, name: str) -> Generator[simpy.Event, None, None]:
        """Let ``seconds`` pass and record them."""
        if seconds > 0:
            start_s = self.env.now
            yield self.env.timeout(seconds)
            self.span(name, kind, start_s)

    def span(self, name: str, kind: SpanKind, start_s: float) -> None:
        """Record what began at ``start_s`` and ends now."""
        if self.env.now > start_s:
            self.record(Span(self.track, name, kind, start_s, self.env.now))

    def transfer(self, name: str, start_s: float, limits: Sequence[tuple[float, str]]) -> None:
        """Record a transfer since ``start_s``, with one span for each of its limits.

        Args:
            name: of the spans.
            start_s: when they began.
            limits: from when on what held them back; what lies before the first counts to it.
        """
        if not limits:
            if self.env.now > start_s:
                self.record(Span(self.track, name, "transfer", start_s, self.env.now))
            return
        starts = [start_s, *(at_s for at_s, _ in limits[1:])]
        names = [limit for _, limit in limits]
        for begin_s, end_s, limit in zip(starts, [*starts[1:], self.env.now], names, strict=True):
            if end_s > begin_s:
                self.record(Span(self.track, name, "transfer", begin_s, end_s, limit))
