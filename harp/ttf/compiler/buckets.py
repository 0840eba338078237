"""The choice of buckets for a size that varies: padding against compilation.

Each bucket costs a compilation; each call costs the time of its bucket, which is the smallest that
holds it. A bucket that is optimal ends at a size that occurs, else a smaller one would do; so sizes
are cut into runs, and dynamic programming finds the best cut into k runs out of the best cuts into
k - 1 (as histograms are cut: Jagadish et al., VLDB 1998).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST = 8


def choose(calls: Mapping[int, float], time_s: Callable[[int], float], compile_s: float,
           most: int = MOST) -> tuple[tuple[int, ...], float]:
    """Give the buckets of least cost, and that cost in seconds.

    Args:
        calls: expected calls of each size.
        time_s: seconds of a call of a size.
        compile_s: seconds that a bucket takes to compile.
        most: buckets at most.

    """
    sizes = sorted(calls)
    if not sizes:
        raise ValueError("no size to choose buckets for")
    count, before = len(sizes), [0.0]
    for size in sizes:
        before.append(before[-1] + calls[size])
    cost = [time_s(size) for size in sizes]
    best = [0.0] + [float("inf")] * count
    cuts: list[list[int]] = []
    answers: list[tuple[float, tuple[int, ...]]] = []
    for buckets in range(1, min(most, count) + 1):
        now, cut = [float("inf")] * (count + 1), [0] * (count + 1)
        for end in range(1, count + 1):
            for begin in range(end):
                total = best[begin] + (before[end] - before[begin]) * cost[end - 1]
                if total < now[end]:
                    now[end], cut[end] = total, begin
        best = now
        cuts.append(cut)
        answers.append((best[count] + buckets * compile_s, _ends(cuts, sizes)))
    total, ends = min(answers)
    return ends, total


def _ends(cuts: list[list[int]], sizes: list[int]) -> tuple[int, ...]:
    """Walk back over the cuts."""
    end, found = len(sizes), []
    for cut in reversed(cuts):
        found.append(sizes[end - 1])
        end = cut[end]
    return tuple(reversed(found))
