"""Planned paths (``routing: plan``) for all flows that run at once, whatever job they belong to.

A planner that sees one job at a time puts two jobs' flows on the same links. So every job announces
the flows of its averaging between hosts before anything runs, and they are planned together. After
a change of the fabric the plan is revised, as by `harp plan --replan` while a job runs: unaffected
flows keep their paths. Flows that were not announced, or that change from step to step
(halving-doubling, all-to-alls), are planned alone, phase by phase. More than `MOST` flows are not
planned but hashed, which spreads that many evenly enough, and a note of the row says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from harp.routing import hashes
from harp.routing.planner import plan_paths, replan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harp.routing.fabric import Fabric
    from harp.routing.path_plan import PathPlan

    Ints = NDArray[np.int64]

MOST = 1 << 15
"""Flows that are planned at once."""


class PlannedPaths(NamedTuple):
    """The links of each flow, padded with -1, and the source port that leads along them."""

    links: Ints
    source_port: NDArray[np.uint16]

    @classmethod
    def of(cls, plan: PathPlan) -> PlannedPaths:
        """Take them from a plan."""
        return cls(np.asarray(plan.links), plan.source_port.astype(np.uint16))

    def take(self, which: Ints) -> PlannedPaths:
        """Select flows by index."""
        return PlannedPaths(self.links[which], self.source_port[which])


class SharedPlan:
    """Paths of the announced flows; flows with the same two ends differ by their order."""

    def __init__(self, protocol: int = hashes.UDP) -> None:
        self._protocol = protocol
        self._announced = np.empty((0, 2), np.int64)
        self._revisions: dict[int, tuple[Fabric, PathPlan]] = {}
        self.hashed = 0
        """The most flows of one call that were not planned."""

    @property
    def notes(self) -> list[str]:
        """A sentence on flows that were not planned."""
        return [f"not planned: {self.hashed:,} flows at once are more than {MOST:,}, so they are "
                "hashed"] if self.hashed else []

    def announce(self, src: Ints, dst: Ints) -> None:
        """Take flows between endpoints into the plan; all before the first `paths`."""
        self._announced = np.concatenate([self._announced, np.stack([src, dst], axis=1)])

    def paths(self, fabric: Fabric, src: Ints, dst: Ints) -> PlannedPaths | None:
        """The path of each flow; None where they are too many to be planned."""
        if len(src) > MOST:
            self.hashed = max(self.hashed, len(src))
            return None
        if 0 < len(src) <= len(self._announced) <= MOST:
            endpoints = len(fabric.endpoint_host)
            keys = _keys(self._announced[:, 0], self._announced[:, 1], endpoints)
            wanted = _keys(src, dst, endpoints)
            order = np.argsort(keys)
            at = order[np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)]
            if (keys[at] == wanted).all():
                return PlannedPaths.of(self._revision(fabric)).take(at)
        return PlannedPaths.of(plan_paths(fabric, src, dst, protocol=self._protocol))

    def _revision(self, fabric: Fabric) -> PathPlan:
        """The plan of all announced flows for a state of the fabric."""
        if id(fabric) not in self._revisions:
            before = list(self._revisions.values())
            plan = (replan(before[-1][1], fabric) if before else
                    plan_paths(fabric, *self._announced.T, protocol=self._protocol))
            self._revisions[id(fabric)] = fabric, plan
        return self._revisions[id(fabric)][1]


def _keys(src: Ints, dst: Ints, endpoints: int) -> Ints:
    """A number for each flow: its ends, and how many flows between them stand before it."""
    pair = src * endpoints + dst
    order = np.argsort(pair, kind="stable")
    first = np.searchsorted(pair[order], pair[order])
    turn = np.empty(len(pair), np.int64)
    turn[order] = np.arange(len(pair)) - first
    return np.asarray(pair * (MOST + 1) + turn)
