"""Steps of training over the cache: the first is traced, the later ones follow a plan.

An event is whatever touches pages of the window: an operator that reads parameters, or a gradient
that is put away. A step that does something else than the one before, because a branch was taken or
a layer left out, is no mistake: from there on its pages are brought as they are asked for, and the
next step has a new plan. All ranks leave a plan at the same event, since they do the same.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from harp.angelptm.cache import Demand
from harp.angelptm.page_plan import (
    DEVICE,
    HOST,
    REDUCE,
    Event,
    Plan,
    Rates,
    Trace,
    plan,
    relabel,
)
from harp.angelptm.step_trace import Work, make_trace
from harp.angelptm.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from harp.angelptm.cache import Cache
    from harp.angelptm.page_plan import Job, Placement
    from harp.angelptm.reduction import Reduction

Plans = dict[tuple[int, ...], tuple["Plan", "Placement"]]
"""By the tiers that pages begin in; each with the places of its first step."""

log = logging.getLogger("harp.angelptm")

PLANS = 2
"""Plans that may end in new tiers; the next one returns, so that it serves all later steps."""


class Steps:
    """Runs events and updates in their order. `update` updates a chunk, in any thread."""

    def __init__(self, cache: Cache, update: Callable[[int], None], *, at_end: bool,
                 late: int = 0, reduction: Reduction | None = None,
                 agree: Callable[[list[float]], list[float]] = list) -> None:
        self._cache, self._update = cache, update
        self._reduction, self._agree = reduction, agree
        self._at_end = at_end
        """Whether no update may begin before the end: of clipping, or a scaled loss."""
        self._late = late
        """In how many steps after its own a gradient is applied; 0: in its own."""
        self._owed: tuple[int, ...] = ()
        """Chunks that steps before have left to later ones."""
        self._worker = Worker(cache, self._do_job)
        self._trace: Trace | None = None
        self._plans: Plans = {}
        self._known: dict[tuple[int, ...], tuple[Trace, Plans]] = {}
        """By the chunks that are updated: late updates take turns."""
        self._demand: Demand | None = None
        self._plan: Plan | None = None
        self._events: list[Event] = []
        self._ends: list[int] = []
        """Events at the end of each micro-batch."""
        self.sum = 0
        """Of what was done in this step."""
        self._now: frozenset[int] = frozenset()
        self._since = 0.0
        self._job_seconds = 0.0
        self.rates = Rates()
        self.planned = self.diverged = 0
        """Steps that began with a plan, and those of them that left it."""

    def touch(self, pages: frozenset[int]) -> None:
        """Have pages on the device, before an operator uses them."""
        if pages <= self._now:
            return
        self._close_event()
        if not self._events:
            self._begin_step()
        number = len(self._events)
        if self._plan is not None and not self._follows(number, pages):
            self.leave_plan()
        if self._plan is not None:
            self._worker.wait(number)
        else:
            self._on_demand().have(sorted(pages), DEVICE)
        self._events.append(Event(tuple(sorted(pages))))
        self._add_up(self._events[-1].pages)
        self._now, self._since = pages, time.perf_counter()

    def _add_up(self, done: tuple[int, ...]) -> None:
        # Numbers alone have the same hash in all processes; a float64 holds 52 bits exactly.
        self.sum = hash((self.sum, done)) & ((1 << 52) - 1)

    def begin_batch(self, *, last: bool) -> None:
        """Begin the backward pass of a micro-batch."""
        if self._reduction:
            self._reduction.begin(last=last)

    def wrote(self, number: int) -> None:
        """Hear that a parameter's gradient is in its pages."""
        if self._reduction is None:
            return
        self._add_up((-1, number))
        self._reduction.wrote(number)
        self._close_event()
        self._now = frozenset()  # the worker may now take the pages
        if self._plan is None:
            self._reduce_now(self._reduction.due(self._cache.layout.pages_of(number)))

    def end_batch(self) -> None:
        """End the backward pass of a micro-batch."""
        self._ends.append(len(self._events))
        if self._reduction and self._plan is None:
            self._reduce_now(self._reduction.due(over=True))

    def settle(self) -> bool:
        """Wait until all gradients are there, and reduced; returns whether there is a plan."""
        self._close_event()
        self._now = frozenset()
        if self._plan is not None and not self._follows(len(self._events), frozenset()):
            self.leave_plan()
        if self._plan is not None:
            self._worker.wait(len(self._events))
        elif self._reduction:
            self._reduce_now(self._reduction.due(over=True))
        return self._plan is not None

    def forget(self, pages: Iterable[int]) -> None:
        """Drop what is old."""
        self.leave_plan()
        self._on_demand().drop(pages)

    def look(self, pages: frozenset[int]) -> None:
        """Have pages on the device for something that is no part of a step."""
        self.leave_plan()
        self._on_demand().have(sorted(pages), DEVICE)

    @contextmanager
    def opened(self, page: int) -> Iterator[int]:
        """Have a page in memory, for something that is no part of a step; give its address."""
        self.leave_plan()
        self._on_demand().have([page], HOST)
        with self._cache.opened([page], [page]) as (address,):
            assert isinstance(address, int)
            yield address

    def close(self) -> None:
        """End the worker's thread."""
        self._worker.close()

    def complete(self) -> bool:
        """Finish the plan, or what else the step has left to do; returns whether it had a plan."""
        if planned := self.settle():
            self._worker.finish(len(self._events))
            self._plan = None
        self._owed = ()
        return planned

    def end(self, chunks: Sequence[int], due: Sequence[int]) -> None:
        """End the step: all gradients are there, and these chunks are updated, or owed.

        Steps like it, such as the next one, update those that are ``due``.
        """
        planned = self.complete()
        if self._late and self._trace is not None:
            self._owed = tuple(chunks)
        elif self._late or not planned:
            self.update_now(chunks)
        self._events.append(Event(()))
        self._learn(tuple(due))
        self._events, self._ends, self.sum = [], [], 0

    def _learn(self, due: tuple[int, ...]) -> None:
        """Let the next step follow the trace of this one."""
        trace = self._make_trace(due)
        if due not in self._known and len(self._known) >= max(self._late, 1):
            self._known.clear()
        if due not in self._known or self._known[due][0] != trace:
            self._known[due] = trace, {}
        self._trace, self._plans = self._known[due]

    @property
    def in_step(self) -> bool:
        """Whether something of a step has been done."""
        return bool(self._events)

    def _begin_step(self) -> None:
        if self._trace is None:
            return
        placement = tuple(self._cache.where)
        tiers = tuple(tier for tier, _ in placement)
        if tiers in self._plans:
            made = relabel(*self._plans[tiers], placement)
        else:
            made = plan(self._trace, self._cache.capacities, placement, self.rates,
                        returns=len(self._plans) >= PLANS, agree=self._agree)
            self._plans[tiers] = made, placement
            log.debug("a plan of %d actions, %d events ahead", len(made.actions), made.ahead)
        self.planned += 1
        self._demand, self._plan = None, made
        self._worker.run(made)

    def _follows(self, number: int, pages: frozenset[int]) -> bool:
        assert self._trace is not None
        events = self._trace.events
        return number < len(events) and events[number].pages == tuple(sorted(pages))

    def forget_gradients(self) -> None:
        """Forget the gradients of this step.

        Its events stay: a plan for fewer micro-batches than a step has would update too early.
        """
        self.leave_plan()
        if self._reduction:
            shown = self._cache.layout.shown
            self._on_demand().drop(range(shown, 2 * shown))
            self._reduction.forget()

    def leave_plan(self) -> None:
        """Have the rest of the step done as it is asked for, after the updates that are owed.

        Whatever comes next may move the pages of the last event, which then ask for them again.
        """
        self._close_event()
        self._now = frozenset()
        if planned := self._plan is not None:
            self._worker.finish(len(self._events) - 1, stops=True)
            self._plan = None
            self.diverged += 1
        owed, self._owed = self._owed, ()
        if owed:
            self.update_now(owed)
        if planned and self._reduction:
            self._reduce_now(self._reduction.due())

    def _on_demand(self) -> Demand:
        if self._demand is None:
            self._demand = Demand(self._cache)
        return self._demand

    def _close_event(self) -> None:
        if self._events and self._now:
            last = self._events[-1]
            self._events[-1] = Event(last.pages, time.perf_counter() - self._since)

    def _do_job(self, job: Job) -> None:
        if job.kind == REDUCE:
            assert self._reduction is not None
            self._reduction.reduce(job.chunk)
        else:
            self._update(job.chunk)

    def _reduce_now(self, pages: Iterable[int]) -> None:
        assert self._reduction is not None
        layout = self._cache.layout
        for page in pages:
            own = layout.source_of(page)[0] + layout.kept
            self._on_demand().have([layout.shown + page, own], HOST)
            self._reduction.reduce(page)
            self._on_demand().drop([layout.shown + page])

    def update_now(self, chunks: Iterable[int]) -> None:
        """Update chunks without a plan."""
        begun, updated = time.perf_counter(), 0
        for chunk in chunks:
            self._on_demand().have(self._cache.layout.pages_to_update(chunk), HOST)
            self._update(chunk)
            if self._reduction:
                self._on_demand().drop(self._cache.layout.shown_of(chunk))
            updated += 1
        self._job_seconds = (time.perf_counter() - begun) / max(updated, 1)

    def _make_trace(self, chunks: Sequence[int]) -> Trace:
        reduction = self._reduction
        work = Work(self._job_seconds, 1 / self.rates.network, self._at_end,
                    each=bool(reduction and reduction.each),
                    sharing=self._cache.sharing if reduction else None, late=bool(self._late))
        return make_trace(self._cache.layout, self._events, self._ends, chunks, work)
