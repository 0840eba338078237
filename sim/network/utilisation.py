"""Utilisation of resources over time, sampled whenever rates change.

A resource carries at constant rates between two samples, so the mean share of an interval is exact.
Only what the last steps need is kept: a long run forgets the steps before, and a step with very
many events keeps every second sample, then every fourth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.records.results import LinkUse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sim.cluster.cluster import Cluster

    Floats = NDArray[np.float64]

MOST_RESOURCES = 8192
"""Resources that are watched; of a larger cluster, those most used when something first moved."""
MOST_SAMPLES = 1024
SHOWN = 256
"""Resources that the result names, busiest first."""


class LinkRecorder:
    """Samples the counters of resources.

    Args:
        cluster: names the resources.
        capacity: float64[resources], what a share of 1 stands for.
    """

    def __init__(self, cluster: Cluster, capacity: Floats) -> None:
        self._cluster = cluster
        self._capacity = capacity
        self._watched = np.empty(0, np.int64)
        self._times: list[float] = [0.0]
        self._carried: list[Floats] = []

    def sample(self, now_s: float, carried: Floats) -> None:
        """Sample the units that every resource has carried by now."""
        if not self._carried:
            if not carried.any():
                self._times[0] = now_s
                return
            used = carried / self._capacity
            self._watched = np.sort(np.argsort(-used, kind="stable")[:MOST_RESOURCES])
            self._carried.append(np.zeros(len(self._watched)))
        if now_s > self._times[-1]:
            self._times.append(now_s)
            self._carried.append(carried[self._watched])
        if len(self._times) > MOST_SAMPLES:
            del self._times[1:-1:2], self._carried[1:-1:2]

    def forget(self, before_s: float) -> None:
        """Drop the samples that only times before ``before_s`` need."""
        first = int(np.searchsorted(self._times, before_s, side="right")) - 1
        if self._carried and first > 0:
            del self._times[:first], self._carried[:first]

    def result(self, step_s: tuple[float, float]) -> LinkUse | None:
        """Shares during one step, from start to end, of the busiest resources; None if unused."""
        if not self._carried:
            return None
        times, carried = np.array(self._times), np.array(self._carried)
        inside = (times > step_s[0]) & (times < step_s[1])
        cuts = np.concatenate([[step_s[0]], times[inside], [step_s[1]]])
        first, last = (_interpolated(times, carried, time_s) for time_s in step_s)
        moved = np.diff(np.concatenate([[first], carried[inside], [last]]), axis=0)
        capacity = self._capacity[self._watched]
        share = moved / (np.diff(cuts)[:, None] * capacity)
        total = moved.sum(axis=0) / capacity
        busiest = np.argsort(-total, kind="stable")[:SHOWN]
        busiest = busiest[total[busiest] > 0]
        names = tuple(self._cluster.resource_name(int(self._watched[r])) for r in busiest)
        return LinkUse(names, cuts, np.clip(share.T[busiest], 0.0, 1.0))


def _interpolated(times: Floats, carried: Floats, time_s: float) -> Floats:
    """Units carried by ``time_s``, between two samples or beyond the last."""
    after = int(np.searchsorted(times, time_s))
    if after == 0 or after == len(times):
        return np.asarray(carried[min(after, len(times) - 1)])
    share = (time_s - times[after - 1]) / (times[after] - times[after - 1])
    return np.asarray(carried[after - 1] + share * (carried[after] - carried[after - 1]))
