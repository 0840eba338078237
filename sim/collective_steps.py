"""Run a collective plan message by message: the reference for the fluid phases of `sim.collective`.

Every message is a flow. A rank begins step s + 1 when its own sends and receives of step s are
complete; a message starts when both its ends have begun its step, and its first byte moves after
the latency of its edge and the stack's cost of this and the sender's earlier messages of the step.
Ranks are otherwise asynchronous: on a fabric where edges differ, waves of delay run through them as
they do in the real thing.

Steps are generated when the first rank comes to them and dropped when the last has passed, so
memory is O(ranks x window) and not O(messages). Local work (top-k selection) takes no time here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from harp.collectives.ir import Transfers
from sim.fabric.stepper import Messages, run_messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from harp.collectives.plan import Plan
    from sim.fabric.fluid import Fluid
    from sim.fabric.stepper import Effort
    from sim.transport import Transport

    Ints = NDArray[np.int64]
    Ids = NDArray[np.int32]
    Floats = NDArray[np.float64]
    Router = Callable[[Ints, Ints], "Edges"]


class Edges(NamedTuple):
    """How messages between pairs of ranks travel; one entry a pair."""

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
    """When a collective ended, and what simulating it took."""

    end_s: float
    rank_end_s: Floats
    """When each rank was done, float64[ranks]."""
    effort: Effort


def run_steps(plan: Plan, net: Fluid, router: Router) -> StepTimes:
    """Run every step of ``plan`` on ``net``, from now on; nothing else may run there meanwhile.

    Args:
        plan: what to run.
        net: where the flows run, in bytes and bytes/s.
        router: gives the edges of pairs of ranks ``(src, dst)``; called once for each pair.

    Raises:
        RuntimeError: a resource is down for good, so the plan never ends.

    """
    table = _Table(plan, router)
    ends_s, effort = run_messages(net, plan.ranks, plan.steps, table.load)
    return StepTimes(float(ends_s.max()), ends_s, effort)


class _Table:
    """The edges met so far, in ascending order of (src, dst)."""

    def __init__(self, plan: Plan, router: Router) -> None:
        self._plan, self._router = plan, router
        self._known = np.empty(0, np.int64)
        self._edges = Edges(np.empty(0, np.int32), np.empty(0), np.empty(0), np.empty(0))
        self._rows = Transfers.empty()
        self._piece = np.empty(0, np.int64)
        self._last: Messages | None = None

    def load(self, step: int) -> Messages:
        """Messages of one step; rows that are pieces of one message are summed."""
        rows = self._plan.step(step)
        same = np.array_equal(rows.src, self._rows.src) and np.array_equal(rows.dst, self._rows.dst)
        if self._last is None or not same:
            self._rows, self._last = rows, self._messages(rows)
        nbytes = np.bincount(self._piece, rows.length, len(self._last.src))
        return self._last._replace(amount=nbytes.astype(np.float64))

    def _messages(self, rows: Transfers) -> Messages:
        """Edges of one step's messages; their amounts are still 0."""
        ranks = self._plan.ranks
        pairs, first, piece = np.unique(rows.src.astype(np.int64) * ranks + rows.dst,
                                        return_index=True, return_inverse=True)
        self._piece = piece.reshape(-1)
        src, dst = np.divmod(pairs, ranks)
        edges = self._find(pairs)
        delay_s = edges.alpha_s + _queued_s(src, first, edges.message_s)
        return Messages(src.astype(np.int32), dst.astype(np.int32), edges.route,
                        np.zeros(len(pairs)), edges.ceiling, delay_s)

    def _find(self, pairs: Ints) -> Edges:
        """Edges of these pairs (ascending); the router makes those that are new."""
        at = np.searchsorted(self._known, pairs)
        met = at < len(self._known)
        met[met] = self._known[at[met]] == pairs[met]
        if not met.all():
            new = pairs[~met]
            known = np.concatenate([self._known, new])
            order = np.argsort(known, kind="stable")
            added = self._router(*np.divmod(new, self._plan.ranks))
            self._known, self._edges = known[order], self._edges.and_then(added).take(order)
            at = np.searchsorted(self._known, pairs)
        return self._edges.take(at)


def _queued_s(src: Ints, place: Ints, message_s: Floats) -> Floats:
    """Cost of each message and of those of the same sender that stand before it."""
    order = np.lexsort((place, src))
    spent_s = np.cumsum(message_s[order])
    begins = np.searchsorted(src, src)
    queued_s = np.empty(len(src))
    queued_s[order] = spent_s
    return queued_s - (spent_s[begins] - message_s[order][begins])


def route_over(transport: Transport, net: Fluid, placement: Ints) -> Router:
    """Edges between GPUs as `sim.transport` has them; ``placement[rank]`` is a rank's GPU."""
    def router(src: Ints, dst: Ints) -> Edges:
        paths = transport.paths(placement[src], placement[dst])
        every = np.arange(paths.edges)
        first = net.add_routes(*paths.footprints(every, np.ones(paths.edges)))
        return Edges((first + every).astype(np.int32), paths.ceiling, paths.alpha_s,
                     paths.message_s)
    return router
