"""Waiting times of a step with its states in pages over device, host and disk.

The plan is the runtime's: `harp.angelptm.page_plan`, for a trace that is made of the model's
layers. As in the runtime (`harp.angelptm.steps`), a forward pass touches a layer's parameters, a
backward pass its gradients as well, and `harp.angelptm.step_trace` says when gradients are reduced
and chunks updated. The first steps may end with pages in new tiers; then a plan returns, and serves
all steps that follow. `harp.angelptm.page_plan.estimate` gives the times. So the
simulator, as the runtime's plan, leaves out that a disk's reads slow its writes down: a page's read
and write take the mean of both rates.

Where copies and updates have the cores that compute (``slows``), those beside computing lengthen
it. They are taken to be spread evenly over the step.

Several ranks share all pages, and gather and reduce them one after the other, as the runtime does
(`Exchanges`). So each takes the time that its collective has alone on the network.

A plan of very many pages takes long to make. Above `MOST_PAGES` several pages move as one, and of
many micro-steps the first, the second and the last are planned; the second stands for the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from harp.angelptm.page_plan import (
    RESERVE,
    UPDATE,
    Capacities,
    Event,
    Job,
    Move,
    Plan,
    Rates,
    Sharing,
    Trace,
    estimate,
    first_placement,
    plan,
)
from harp.angelptm.pages import Layout, whole_page
from harp.angelptm.step_trace import Work, make_trace
from harp.angelptm.tiers import stays
from sim.step.compute import NONE, backward_s, forward_s
from sim.step.kernels import moving

if TYPE_CHECKING:
    from collections.abc import Callable

    from sim.step.recipe import Recipe
    from sim.workloads.model import Model

MOST_MICRO_STEPS = 3
MOST_PAGES = 512
SPARE = 2 * RESERVE
"""More pages than any plan keeps free."""
LONG_S = 1e4
"""So long an event hides all that goes beside it: its end then says when it began."""

ROUNDING_S = 1e-9


@dataclass(frozen=True)
class Tiers:
    """Room of a rank for its pages, in bytes and bytes a second."""

    device: int
    host: int
    disk: int
    copy: float
    disk_rate: float
    page: int
    update: float
    """Parameters a second."""
    slows: float = 0.0
    """Seconds of computing that a second of moves and updates beside it takes."""


@dataclass(frozen=True)
class Exchanges:
    """Sharing of pages among ranks."""

    ranks: int
    stage: int
    """Of ZeRO, 1 to 3: what `harp.angelptm` shares out."""
    seconds: Callable[[str, int], float]
    """Time of a collective (allgather, alltoall) of ``nbytes``, among all ranks, alone."""


@dataclass(frozen=True)
class Waits:
    """Waits of the GPU in a micro-step."""

    forward_s: tuple[float, ...]
    """Before each layer, in forward order."""
    backward_s: tuple[float, ...]
    """Before each layer, in backward order."""
    times: int = 1
    """Micro-steps like this one, one after the other."""


@dataclass(frozen=True)
class Paging:
    """A step's plan and what it makes the GPU wait for."""

    plan: Plan
    micro_steps: tuple[Waits, ...]
    end_s: float
    """Behind the backward pass: updates and moves that are left."""
    device_bytes: int
    """Bytes of states that are on the device."""


def paged(recipe: Recipe, flops: float, tiers: Tiers,
          exchanges: Exchanges | None = None) -> Paging:
    """Plan the steps of a model. Raises `harp.angelptm.page_plan.CapacityError`."""
    layout = _layout(recipe, tiers, exchanges.ranks if exchanges else 1)
    page = layout.page_bytes
    enough = layout.pages + SPARE  # a tier that holds all pages is as good as a larger one
    capacities = Capacities(*(min(each // page, enough)
                              for each in (tiers.device, tiers.host, tiers.disk)))
    rates = Rates(tiers.copy / page, tiers.disk_rate / page if tiers.disk_rate else 1.0)
    work, later = Work(layout.chunk / tiers.update), 0
    if exchanges:
        rates = replace(rates, network=1 / exchanges.seconds("allgather", page))
        work = replace(work, reduce_s=exchanges.seconds("alltoall", page),
                       each=exchanges.stage > 1,
                       sharing=Sharing(layout.shown, exchanges.ranks, exchanges.stage == 3))
        later = stays(layout, exchanges.stage, recipe.accumulation)
    trace = _trace(recipe, flops, layout, work)
    made = _timed(_steady(trace, capacities, _rounded(rates), layout.pages, layout.apart, later),
                  trace)
    waits = _waits(made, trace, rates)
    if tiers.slows:
        waits = _slowed(made, trace, rates, waits, tiers.slows)
    return Paging(made, tuple(_micro_steps(waits, len(recipe.model.layers), recipe.accumulation)),
                  waits[-1], min(layout.pages, capacities.device) * page)


def _micro_steps(waits: list[float], layers: int, accumulation: int) -> list[Waits]:
    count = min(accumulation, MOST_MICRO_STEPS)
    found = []
    for number in range(count):
        own = waits[2 * layers * number:2 * layers * (number + 1)]
        times = accumulation - count + 1 if number == 1 and count == MOST_MICRO_STEPS else 1
        found.append(Waits(tuple(own[:layers]), tuple(own[layers:]), times))
    return found


def _rounded(rates: Rates) -> Rates:
    """Round rates to powers of two: they only choose a plan, which many draws then share."""
    return Rates(*(2.0 ** round(math.log2(rate)) for rate in (
        rates.copy, rates.disk, rates.network)))


def _layout(recipe: Recipe, tiers: Tiers, ranks: int) -> Layout:
    sizes = tuple(tensor.elements for tensor in recipe.model.tensors)
    page = whole_page(tiers.page, ranks)
    made = Layout(sizes, recipe.element_bytes, page, ranks)
    together = -(-made.pages // MOST_PAGES)
    return replace(made, page_bytes=page * together)


def _trace(recipe: Recipe, flops: float, layout: Layout, work: Work) -> Trace:
    """Make the trace that the runtime would take of the first step."""
    beside, events, ends = moving(recipe), list[Event](), list[int]()
    tensors = _tensors(recipe.model)
    for _ in range(min(recipe.accumulation, MOST_MICRO_STEPS)):
        for layer, own in zip(recipe.model.layers, tensors, strict=True):
            seconds = forward_s(recipe, layer, flops) + beside.get(layer.name, NONE).forward_s
            events.append(Event(_pages(layout, own, gradient=False), seconds))
        for layer, own in zip(recipe.model.layers[::-1], tensors[::-1], strict=True):
            seconds = backward_s(recipe, layer, flops) + beside.get(layer.name, NONE).backward_s
            events.append(Event(_pages(layout, own, gradient=True), seconds))
        ends.append(len(events))
    return make_trace(layout, [*events, Event(())], ends, range(layout.chunks), work)


def _tensors(model: Model) -> list[tuple[int, ...]]:
    """Numbers of the tensors that each layer reads; a tied output layer reads the words' table."""
    found: list[tuple[int, ...]] = []
    number = 0
    for layer in model.layers:
        found.append(tuple(range(number, number + len(layer.tensors))))
        number += len(layer.tensors)
    if model.shape is not None and model.shape.head == "tied":
        words = model.shape.vocabulary * model.shape.width
        table = next(place for place, tensor in enumerate(model.tensors)
                     if tensor.elements == words)
        found = [(table,) if layer.name == "lm_head" else own
                 for layer, own in zip(model.layers, found, strict=True)]
    return found


def _pages(layout: Layout, tensors: tuple[int, ...], *, gradient: bool) -> tuple[int, ...]:
    pages = {page for one in tensors for page in layout.pages_of(one)}
    if gradient:
        pages |= {page for one in tensors for page in layout.pages_of(one, gradient=True)}
    return tuple(sorted(pages))


@lru_cache(maxsize=64)
def _steady(trace: Trace, capacities: Capacities, rates: Rates, pages: int, absent: int,
            later: int) -> Plan:
    """Plan until a step ends as it began. Here traces that differ only in times are the same."""
    placement = first_placement(pages, capacities, absent, later)
    for returns in (False, False, True):
        made = plan(trace, capacities, placement, rates, returns=returns)
        if [tier for tier, _ in made.end] == [tier for tier, _ in placement]:
            return made
        placement = made.end
    return made


def _timed(made: Plan, trace: Trace) -> Plan:
    """Put a trace's own jobs into a plan that was made for a trace of other times."""
    jobs = {job: job for job in trace.jobs}  # equal ones, whose times may differ
    return replace(made, actions=tuple(jobs[action] if isinstance(action, Job) else action
                                       for action in made.actions))


def _waits(made: Plan, trace: Trace, rates: Rates) -> list[float]:
    """Give the time for which each event waits, and what is left behind the last."""
    waits, end_s = [], 0.0
    for number, event in enumerate(trace.events):
        until = made.need[number]
        part = Plan(made.actions[:until], made.need[:number + 1], made.end)
        events = (*trace.events[:number], Event(event.pages, LONG_S))
        begin_s = estimate(part, replace(trace, events=events), rates) - LONG_S
        waits.append(begin_s - end_s if begin_s - end_s > ROUNDING_S else 0.0)
        end_s = begin_s + event.seconds
    return [*waits[:-1], waits[-1] + max(estimate(made, trace, rates) - end_s, 0.0)]


def _slowed(made: Plan, trace: Trace, rates: Rates, waits: list[float],
            slows: float) -> list[float]:
    """Give the waits of events that moves and updates lengthen: each waits for its own part.

    These are spread evenly over the step, computing and waiting.
    """
    work_s = sum(_work_s(action, rates) for action in made.actions)
    step_s = sum(waits) + sum(event.seconds for event in trace.events)
    longer = slows * min(work_s / step_s, 1.0)
    events = tuple(replace(event, seconds=(1 + longer) * event.seconds) for event in trace.events)
    return [wait + longer * event.seconds for wait, event in zip(
        _waits(made, replace(trace, events=events), rates), trace.events, strict=True)]


def _work_s(action: Move | Job, rates: Rates) -> float:
    """Give the seconds for which an action has a core: neither the disk's nor the network's."""
    if isinstance(action, Job):
        return action.seconds if action.kind == UPDATE else 0.0
    return 1 / rates.copy if action.copies and not (action.by_disk or action.gathers) else 0.0
