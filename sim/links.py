"""Utilisation of resources over time, sampled whenever rates change.

A resource carries at constant rates between two samples, so the mean share of an interval is exact.
Long runs are thinned: samples closer than a thousandth of the time so far are dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.results import LinkUse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sim.cluster import Cluster

    Floats = NDArray[np.float64]

MOST_RESOURCES = 4096
"""Resources that are watched; of a larger cluster, those that came to carry most by the end."""
SHOWN = 256
"""Resources that the result names, busiest first."""


class LinkRecorder:
    """Takes samples of what resources have carried."""

    def __init__(self, cluster: Cluster, capacity: Floats) -> None:
        self._cluster = cluster
        self._capacity = capacity
        self._times: list[float] = []
        self._carried: list[Floats] = []

    def sample(self, now_s: float, carried: Floats) -> None:
        """Note what every resource has carried by now."""
        if self._times and now_s - self._times[-1] < 1e-3 * now_s:
            return
        self._times.append(now_s)
        self._carried.append(carried[:MOST_RESOURCES].copy())

    def result(self, step_s: tuple[float, float]) -> LinkUse | None:
        """Shares during one step, from start to end, of the busiest resources; None if unused."""
        if not self._times:
            return None
        times = np.array([0.0, *self._times, max(step_s[1], *self._times)])
        carried = np.array([np.zeros_like(self._carried[0]), *self._carried, self._carried[-1]])
        times, keep = np.unique(times, return_index=True)
        carried = carried[keep]
        inside = (times > step_s[0]) & (times < step_s[1])
        cuts = np.concatenate([[step_s[0]], times[inside], [step_s[1]]])
        at = np.array([np.interp(cuts, times, column) for column in carried.T])
        capacity = self._capacity[: len(at), None]
        share = np.diff(at, axis=1) / np.maximum(np.diff(cuts) * np.maximum(capacity, 1e-30), 1e-30)
        busiest = np.argsort(-at[:, -1] / capacity[:, 0] + at[:, 0] / capacity[:, 0],
                             kind="stable")[:SHOWN]
        used = [int(r) for r in busiest if at[r, -1] > at[r, 0]]
        names = tuple(self._cluster.resource_name(r) for r in used)
        return LinkUse(names, cuts, np.clip(share[used], 0.0, 1.0))
