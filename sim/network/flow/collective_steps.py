"""Run a collective plan piece by piece: the reference for the fluid phases of `flow_communicator`.

Every piece of a message is a flow. In a pipeline (rings, trees) a piece is handed over when the
pieces that it passes on have arrived and a slot is free (`harp.collectives.window`); in any other
phase each edge has one message, which starts when both its ends have begun the phase. A piece's
first byte moves after the latency of its edge and the stack's cost of a message; on an edge pieces
follow one another, and pay that cost one after the other, but their latencies overlap. Links pass
bytes on at once here, not frame by frame (`sim.network.message_paths.Stages`). A rank
begins the next phase when its own edges of this one are done: on a fabric where edges differ, waves
of delay run through the ranks as they do in the real thing.

Phases are generated when the first rank comes to them and dropped when the last has passed. Local
work (top-k selection) takes no time here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from harp.collectives.window import NCCL_WINDOW
from sim.network.flow.streams import Stage, StageEdges, run_stages

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from harp.collectives.collective_plan import Plan
    from harp.collectives.ir import Phase
    from harp.collectives.window import Window
    from sim.network.flow.fluid import Fluid
    from sim.network.flow.streams import Effort

    Ints = NDArray[np.int64]
    Ids = NDArray[np.int32]
    Floats = NDArray[np.float64]
    Router = Callable[[Ints, Ints], "Edges"]


class Edges(NamedTuple):
    """Messages between pairs of ranks; one entry a pair."""

    route: Ids
    """Routes of the `Fluid`, for bytes."""
    ceiling: Floats
    """Bytes/s that a message never exceeds."""
    alpha_s: Floats
    """Latency."""
    message_s: Floats
    """The sender's cost of a message."""

    def take(self, index: Ints) -> Edges:
        """Select pairs."""
        return Edges(self.route[index], self.ceiling[index], self.alpha_s[index],
                     self.message_s[index])

    def and_then(self, other: Edges) -> Edges:
        """Append other pairs."""
        return Edges(np.concatenate([self.route, other.route]),
                     np.concatenate([self.ceiling, other.ceiling]),
                     np.concatenate([self.alpha_s, other.alpha_s]),
                     np.concatenate([self.message_s, other.message_s]))


class StepTimes(NamedTuple):
    """End of a collective, and the cost of simulating it."""

    end_s: float
    rank_end_s: Floats
    """End at each rank, float64[ranks]."""
    effort: Effort


def run_steps(plan: Plan, net: Fluid, router: Router, window: Window = NCCL_WINDOW) -> StepTimes:
    """Run every message of ``plan`` on ``net``, from now on; nothing else may run there meanwhile.

    Args:
        plan: what to run.
        net: where the flows run, in bytes and bytes/s.
        router: gives the edges of pairs of ranks ``(src, dst)``; called once for each pair.
        window: slots of each edge of a pipeline.

    Raises:
        RuntimeError: a resource is down for good, so the plan never ends.

    """
    phases = [phase for phase in plan.phases() if phase.local is None]
    table = _Table(plan.ranks, router)
    ends_s, effort = run_stages(net, plan.ranks, len(phases), window.slots,
                                lambda number: _stage(phases[number], table, window))
    return StepTimes(float(ends_s.max()), ends_s, effort)


def _stage(phase: Phase, table: _Table, window: Window) -> Stage:
    edges = table.find(phase.src, phase.dst)
    pieces, lag, messages = window.cut(phase)
    delay_s, message_s = edges.alpha_s, edges.message_s
    source = target = np.empty(0, np.int32)
    if phase.feeds is None:
        # Messages that a rank sends at once queue for its stack.
        delay_s, message_s = delay_s + _queued_s(phase.src, message_s), np.zeros_like(message_s)
    else:
        source, target = (pair.astype(np.int32) for pair in (phase.feeds.source,
                                                             phase.feeds.target))
        message_s = messages * message_s
    amount = phase.bytes_per_edge / pieces
    return Stage(StageEdges(phase.src, phase.dst, edges.route, amount, edges.ceiling, delay_s,
                            message_s), pieces, lag, source, target)


class _Table:
    """The edges met so far, in ascending order of (src, dst)."""

    def __init__(self, ranks: int, router: Router) -> None:
        self._ranks, self._router = ranks, router
        self._known = np.empty(0, np.int64)
        self._edges = Edges(np.empty(0, np.int32), np.empty(0), np.empty(0), np.empty(0))

    def find(self, src: Ids, dst: Ids) -> Edges:
        """Edges of these pairs of ranks; the router makes those that are new."""
        pairs = src.astype(np.int64) * self._ranks + dst
        new = np.setdiff1d(pairs, self._known)
        if len(new):
            known = np.concatenate([self._known, new])
            order = np.argsort(known, kind="stable")
            added = self._router(*np.divmod(new, self._ranks))
            self._known, self._edges = known[order], self._edges.and_then(added).take(order)
        return self._edges.take(np.searchsorted(self._known, pairs))


def _queued_s(src: Ids, message_s: Floats) -> Floats:
    """Cost of each message and of those of the same sender that stand before it."""
    order = np.argsort(src, kind="stable")
    spent_s = np.cumsum(message_s[order])
    begins = np.searchsorted(src[order], src[order])
    queued_s = np.empty(len(src))
    queued_s[order] = spent_s - (spent_s[begins] - message_s[order][begins])
    return queued_s
