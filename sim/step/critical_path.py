"""The critical path of a step, with the bottleneck of each of its parts.

The path is found backwards through the spans of the timeline. Whatever ends when the step ends was
waited for; whatever ends when that began was waited for by it, and so on to the step's start. A
first-order statement about every part follows: what makes a thing that holds the path for t seconds
faster by a small share x makes the step shorter by x·t, and what is not on the path is of no use.

Bytes on their way are held back by what the fluid engine saturates on the route of the flow that
ends last (`TimedFluid`), or by the ceiling of one flow. Time that no span ends in is waiting: for
the cycle of a fusion, or for an overlap that is not whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING

from sim.records.results import Limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.records.results import Span

SAME = 1e-9
"""Times closer than this share of a step are one."""
COMPUTE = "compute"
WAITING = "waiting"
NAMES = {"forward": COMPUTE, "backward": COMPUTE, "update": "framework", "message": "messages",
         "negotiation": "coordination", "bubble": "pipeline bubble",
         "page": "page moves", "launch": "kernel launches"}
"""Causes of spans of a kind, where the kind does not say them."""


def critical_path(spans: Sequence[Span], step_s: tuple[float, float]) -> tuple[Limit, ...]:
    """Causes of waiting from ``step_s[0]`` to ``step_s[1]``, the longest first."""
    start_s, now_s = step_s
    near_s = SAME * (now_s - start_s)
    ordered = sorted((span for span in spans if span.end_s > span.start_s),
                     key=lambda span: (span.end_s, span.start_s))
    ends = [span.end_s for span in ordered]
    total: dict[str, float] = defaultdict(float)
    track, last = "", len(ordered)
    while now_s - start_s > near_s:
        last = bisect_right(ends, now_s + near_s, 0, last) - 1
        if last < 0:
            total[WAITING] += now_s - start_s
            break
        if now_s - ends[last] > near_s:
            total[WAITING] += now_s - ends[last]
        span = _waited_for(ordered, last, ends[last] - near_s, track)
        total[cause(span)] += ends[last] - span.start_s
        now_s, track = span.start_s, span.track
    return _ranked(total)


def mean_path(paths: Sequence[tuple[Limit, ...]]) -> tuple[Limit, ...]:
    """Mean of the paths of several steps."""
    total: dict[str, float] = defaultdict(float)
    for limit in (limit for path in paths for limit in path):
        total[limit.name] += limit.seconds / len(paths)
    return _ranked(total)


def _ranked(seconds: dict[str, float]) -> tuple[Limit, ...]:
    return tuple(Limit(name, seconds[name]) for name in sorted(seconds, key=lambda x: -seconds[x]))


def cause(span: Span) -> str:
    """Cause of a span's time."""
    return span.limit or NAMES.get(span.kind, span.kind)


def _waited_for(ordered: Sequence[Span], last: int, least_s: float, track: str) -> Span:
    """Of the spans that end together up to number ``last``: on the same track, if there is one."""
    found = ordered[last]
    while last >= 0 and ordered[last].end_s >= least_s:
        if ordered[last].track == track:
            return ordered[last]
        last -= 1
    return found
