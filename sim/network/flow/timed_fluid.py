"""The fluid engine of fidelity `flow` under simpy's clock.

A `TimedFluid` turns sets of flows into simpy events: `move` starts a set and returns the event that
fires when its last flow completes. simpy sees one event a set, not one a flow. Token buckets are
kept here too: a resource that may run at its burst rate while it has tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sim.network.flow.fluid import EXACT, Fluid

if TYPE_CHECKING:
    from collections.abc import Callable

    import simpy
    from numpy.typing import ArrayLike, NDArray


class FlowSet(NamedTuple):
    """Flows that started together, and the event of the last completion."""

    flows: NDArray[np.int32]
    done: simpy.Event
    number: int
    limits: list[tuple[float, str]]
    """Times and names of the limits of the flow that ends last."""
    watched: bool
    """Whether limits are recorded."""


@dataclass
class TokenBucket:
    """A resource that runs at ``burst`` units/s while it has tokens, else at ``base``.

    Tokens are units; they fill at ``base`` and drain by what is used (RFC 2697's single rate, as
    clouds apply it to a host's network cap). A bucket that ran dry bursts again once a hundredth
    of it is full, so that a steady load does not switch it at every instant.
    """

    resource: int
    base: float
    burst: float
    size: float
    tokens: float = -1.0
    bursting: bool = True

    def __post_init__(self) -> None:
        if self.tokens < 0:
            self.tokens = self.size

    def elapse(self, seconds: float, used: float) -> None:
        """Fill and drain over an interval in which ``used`` units/s flowed."""
        self.tokens = min(self.size, max(0.0, self.tokens + (self.base - used) * seconds))

    def switch(self) -> float | None:
        """The capacity to change to, or None when it stays as it is."""
        if self.bursting and self.tokens <= 1e-9 * self.size:
            self.bursting = False
            return self.base
        if not self.bursting and self.tokens >= (0.01 - 1e-9) * self.size:
            self.bursting = True
            return self.burst
        return None

    def next_switch_s(self, used: float) -> float:
        """Seconds until `switch` has something to say at a constant use of ``used`` units/s."""
        gain = self.base - used
        if self.bursting:
            return self.tokens / -gain if gain < 0 else math.inf
        return (0.01 * self.size - self.tokens) / gain if gain > 0 else math.inf


class TimedFluid:
    """Flows over resources as simpy events.

    Args:
        env: the simpy environment.
        capacity: float64[resources], units/s.
        tolerance: see `Fluid`.
        buckets: resources with a burst; their capacity starts at the burst rate.
        on_change: called with (time, carried units per resource) whenever rates may have changed,
            for utilisation over time.
        name_limit: names what holds a flow back, given the saturated resources of its route; where
            it is missing, nothing is named.
    """

    def __init__(self, env: simpy.Environment, capacity: ArrayLike, *, tolerance: float = EXACT,
                 buckets: tuple[TokenBucket, ...] = (),
                 on_change: Callable[[float, NDArray[np.float64]], None] | None = None,
                 name_limit: Callable[[NDArray[np.int32]], str] | None = None) -> None:
        self.env = env
        self.net = Fluid(capacity, tolerance)
        self._buckets = buckets
        self._bucket_s = env.now
        self._on_change = on_change
        self._name_limit = name_limit
        self._sets: dict[int, FlowSet] = {}
        self._open: dict[int, int] = {}
        self._next_set = 0
        self._set_of = np.full(64, -1, dtype=np.int64)
        self._version = 0
        for bucket in buckets:
            self.net.set_capacity(bucket.resource, bucket.burst)

    @property
    def has_buckets(self) -> bool:
        """Whether a resource has a burst, and so a memory of what it carried."""
        return bool(self._buckets)

    def move(self, routes: ArrayLike, amounts: ArrayLike, *, weights: ArrayLike | None = None,
             ceilings: ArrayLike | None = None, watched: bool = True) -> FlowSet:
        """Start flows now; the arguments are those of `Fluid.start`, and of the set."""
        self._advance()
        flows = self.net.start(routes, amounts, weights=weights, ceilings=ceilings)
        started = FlowSet(flows, self.env.event(), self._next_set, [], watched)
        self._remember(started)
        self._reschedule()
        return started

    def change(self, resources: ArrayLike, capacities: ArrayLike) -> None:
        """Change capacities now (a fault, a repair)."""
        self._advance()
        for resource, capacity in np.nditer([resources, capacities]):
            self.net.set_capacity(int(resource), float(capacity))
        self._reschedule()

    def reroute(self, flows: ArrayLike, routes: ArrayLike) -> None:
        """Put running flows on other routes now."""
        self._advance()
        self.net.reroute(flows, routes)
        self._reschedule()

    def running(self, flows: FlowSet) -> NDArray[np.bool_]:
        """Flows of a set that have not completed, as a mask."""
        self._advance()
        return np.equal(self._set_of[flows.flows], flows.number)

    # ---- bookkeeping: which set a flow belongs to, and how many of each set are open

    def _remember(self, started: FlowSet) -> None:
        self._next_set += 1
        flows = started.flows
        if not len(flows):
            started.done.succeed()
            return
        try:
            self._set_of[flows] = started.number
        except IndexError:  # more flows than ever before: the table grows
            size = max(2 * len(self._set_of), int(flows.max()) + 1)
            larger = np.full(size, -1, dtype=np.int64)
            larger[: len(self._set_of)] = self._set_of
            larger[flows] = started.number
            self._set_of = larger
        self._sets[started.number] = started
        self._open[started.number] = len(flows)

    def _forget(self, flows: NDArray[np.int32]) -> None:
        numbers = self._set_of[flows].tolist()
        self._set_of[flows] = -1
        for number in numbers:
            self._open[number] -= 1
        for number in sorted(set(numbers)):
            if self._open[number] == 0:
                del self._open[number]
                self._complete(self._sets.pop(number).done)

    def _complete(self, done: simpy.Event) -> None:
        """Fire when simpy's clock is where the engine's is."""
        ahead_s = self.net.now_s - self.env.now
        if ahead_s > 0:
            self.env.timeout(ahead_s).callbacks.append(lambda _: _fire(done))
        else:
            done.succeed()

    # ---- the clock: the engine follows simpy, and one timeout waits for its next event

    def _advance(self) -> None:
        """Bring engine and buckets up to simpy's clock."""
        net = self.net
        now_s = max(self.env.now, net.now_s)
        if self._buckets:
            self._settle_buckets(now_s)
        while net.next_s <= now_s:
            # Completions that the tolerance merges may lie a little ahead of simpy's clock.
            self._forget(net.run()[0])
        if net.now_s < now_s:
            net.run(now_s)
        if self._on_change is not None:
            self._on_change(self.net.now_s, self.net.carried())

    def _settle_buckets(self, now_s: float) -> None:
        used = self.net.load()
        for bucket in self._buckets:
            bucket.elapse(now_s - self._bucket_s, used[bucket.resource])
        self._bucket_s = now_s

    def _switch_buckets(self) -> float:
        """Apply the switches of the buckets; the seconds until the next one."""
        for bucket in self._buckets:
            capacity = bucket.switch()
            if capacity is not None:
                self.net.set_capacity(bucket.resource, capacity)
        used = self.net.load()
        return min(bucket.next_switch_s(used[bucket.resource]) for bucket in self._buckets)

    def _reschedule(self) -> None:
        self._version += 1
        wait_s = math.inf
        if self._buckets and self.net.flows:
            # A wait below the clock's resolution would repeat for ever.
            wait_s = max(self._switch_buckets(), float(np.spacing(self.env.now)))
        wait_s = min(wait_s, self.net.next_s - self.env.now)
        if math.isfinite(wait_s):
            version = self._version
            timeout = self.env.timeout(max(wait_s, 0.0))
            timeout.callbacks.append(lambda _: self._tick(version))
        if self._name_limit is not None:
            self._note_limits(self._name_limit)

    def _note_limits(self, name_limit: Callable[[NDArray[np.int32]], str]) -> None:
        """Record the limit of each open set from now on."""
        for number, flows in self._sets.items():
            if not flows.watched:
                continue
            left = flows.flows
            if self._open[number] < len(left):
                left = left[self._set_of[left] == number]
            name = name_limit(self.net.holding(left))
            if not flows.limits or flows.limits[-1][1] != name:
                flows.limits.append((self.env.now, name))

    def _tick(self, version: int) -> None:
        if version == self._version:
            self._advance()
            self._reschedule()


def _fire(event: simpy.Event) -> None:
    event.succeed()
