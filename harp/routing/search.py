"""Local search: spread flows over given paths so that no link exceeds its fair share.

For fabrics and demands that no colouring fits. Flows are first placed one by one, the largest
first, each on the path that hurts least. Then, while some link carries more than its fair share,
the best move off the worst link is made even if another link suffers, and the moved flow rests
for a while (tabu search; F. Glover, "Tabu search, part I", 1989). Chains of such moves find the
alternating paths that a single improving move cannot. The best state seen is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

TOLERANCE = 1e-9
EXCESS_WEIGHT = 1e3
"""Weight of load above the fair share, relative to load below it."""

REST_MOVES = 12
"""Moves for which a moved flow stays where it is."""

MOVABLE = 32
"""Most flows of the worst link that are looked at for one move."""


class Spread:
    """Flows on links, each flow on one of its paths.

    ``paths`` has shape (flows, paths, links), -1 padded; ``demand_bps`` (flows,); ``bps`` and
    ``fair`` (links,) are each link's capacity and its fair load. ``choice`` (flows,) is the path
    that each flow has, -1 for a flow not placed yet. ``load`` is demand over capacity.
    """

    def __init__(self, paths: Ints, demand_bps: Floats, bps: Floats, fair: Floats,
                 choice: Ints) -> None:
        # One link more than there are stands for "no link"; it never fills.
        self._absent = paths[:, :, 0] < 0
        self._paths = np.where(paths < 0, bps.size, paths)
        self._demand = demand_bps
        self._per_bps = np.append(1.0 / bps, 0.0)
        self._fair = np.append(fair, np.inf)
        self.choice = choice.copy()
        placed = np.flatnonzero(choice >= 0)
        self.load = np.zeros(bps.size + 1)
        taken = self._paths[placed, choice[placed]]
        np.add.at(self.load, taken, demand_bps[placed, None] * self._per_bps[taken])

    @property
    def max_load(self) -> float:
        """Load of the fullest link."""
        return float(self.load.max(initial=0.0))

    def place(self, flows: Ints) -> None:
        """Put flows, the largest first, on the path that hurts least (each must have a path)."""
        for flow in flows[np.argsort(-self._demand[flows], kind="stable")].tolist():
            self._put(flow, int(np.argmin(self._cost(np.array([flow]))[0])))

    def improve(self, moves: int, bound: float, movable: NDArray[np.bool_] | None = None,
                seed: int = 1) -> None:
        """Make at most ``moves`` moves, fewer once no link exceeds its fair share.

        ``bound`` is the maximum load that nothing can beat: once it is reached, search goes on
        for the links below it only a tenth of the moves. ``movable`` marks the flows that may
        move (default: all).
        """
        rng = np.random.default_rng(seed)
        rests = np.zeros(self._demand.size, np.int64)
        if movable is not None:
            rests[~movable] = np.iinfo(np.int64).max
        best, kept, best_move = self._badness(), self.choice.copy(), 0
        for move in range(moves):
            done = best[0] <= bound * (1 + TOLERANCE)
            if best[1] <= TOLERANCE or (done and move - best_move > moves // 10):
                break
            self._relieve(move, rests, rng)
            now = self._badness()
            if now < best:
                best, kept, best_move = now, self.choice.copy(), move
        for flow in np.flatnonzero(kept != self.choice).tolist():
            self._put(flow, int(kept[flow]))

    def _badness(self) -> tuple[float, float]:
        """Return maximum load and total load above the fair shares; smaller is better."""
        return round(self.max_load, 9), round(float(np.maximum(self.load - self._fair, 0).sum()), 9)

    def _relieve(self, move: int, rests: Ints, rng: np.random.Generator) -> None:
        """Make the best move off the worst link that has a flow free to move, if one has."""
        excess = self.load - self._fair
        over = np.flatnonzero(excess > TOLERANCE)
        mine = self._paths[np.arange(self.choice.size), self.choice]
        for link in over[np.lexsort([rng.random(over.size), -excess[over]])][:4]:
            flows = np.flatnonzero((mine == link).any(axis=1) & (rests <= move))
            if flows.size:
                flows = rng.permutation(flows)[:MOVABLE]
                cost = self._cost(flows)
                cost[np.arange(flows.size), self.choice[flows]] = np.inf
                cost += rng.random(cost.shape) * TOLERANCE
                which, path = np.unravel_index(int(np.argmin(cost)), cost.shape)
                if np.isfinite(cost[which, path]):
                    self._put(int(flows[which]), int(path))
                    rests[flows[which]] = move + 1 + rng.integers(REST_MOVES)
                    return

    def _cost(self, flows: Ints) -> Floats:
        """Cost of placing each flow on each of its paths; (flows, paths)."""
        paths = self._paths[flows]
        added = self._demand[flows, None, None] * self._per_bps[paths]
        before = self.load[paths]
        placed = self.choice[flows] >= 0
        own = paths[np.arange(flows.size), self.choice[flows]]
        on_own = (paths[..., None] == own[:, None, None, :]).any(axis=3) & placed[:, None, None]
        before = before - np.where(on_own, added, 0.0)
        after = before + added
        fair = self._fair[paths]
        over = np.maximum(after - fair, 0.0) ** 2 - np.maximum(before - fair, 0.0) ** 2
        cost: Floats = EXCESS_WEIGHT * over.sum(axis=2) + (after**2 - before**2).sum(axis=2)
        off = np.maximum(self.load[own] - self._fair[own], 0.0) ** 2
        own_added = self._demand[flows, None] * self._per_bps[own]
        less = off - np.maximum(self.load[own] - own_added - self._fair[own], 0.0) ** 2
        cost -= np.where(placed, EXCESS_WEIGHT * less.sum(axis=1), 0.0)[:, None]
        cost[self._absent[flows]] = np.inf
        return cost

    def _put(self, flow: int, path: int) -> None:
        """Move one flow to a path."""
        old = int(self.choice[flow])
        if old >= 0:
            links = self._paths[flow, old]
            self.load[links] -= self._demand[flow] * self._per_bps[links]
        links = self._paths[flow, path]
        self.load[links] += self._demand[flow] * self._per_bps[links]
        self.choice[flow] = path
