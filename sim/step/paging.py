"""What a step waits for where its states are in pages over device, host and disk.

The plan is the runtime's: `harp.angelptm.plan`, for a trace that is made of the model's layers. As
in the runtime (`harp.angelptm.steps`), a forward pass touches a layer's parameters, a backward pass
its gradients as well, and an update begins when the last gradient of its chunk is there. The first
steps may end with pages in new tiers; then a plan returns, and serves all steps that follow.
`harp.angelptm.plan.estimate` gives the times. So what the simulator leaves out is what that leaves
out: copies that slow computing down, and disks whose reads slow writes down (a page's read and
write take the mean of both rates here).

A plan of very many pages takes long to make. Above `MOST_PAGES` several pages move as one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from harp.angelptm.pages import Layout
from harp.angelptm.plan import (
    RESERVE,
    Capacities,
    Event,
    Job,
    Plan,
    Rates,
    Trace,
    estimate,
    first_placement,
    plan,
)
from sim.step.compute import NONE, backward_s, forward_s
from sim.step.kernels import moving

if TYPE_CHECKING:
    from sim.step.recipe import Recipe
    from sim.workloads.model import Model

MOST_PAGES = 512
SPARE = 2 * RESERVE
"""More pages than any plan keeps free."""
LONG_S = 1e4
"""So long an event hides all that goes beside it: its end then says when it began."""

ROUNDING_S = 1e-9


@dataclass(frozen=True)
class Tiers:
    """What a rank has for its pages, in bytes and bytes a second."""

    device: int
    host: int
    disk: int
    copy: float
    disk_rate: float
    page: int
    update: float
    """Parameters a second."""


@dataclass(frozen=True)
class Paging:
    """A step's plan and what it makes the GPU wait for."""

    plan: Plan
    forward_s: tuple[float, ...]
    """Before each layer, in forward order."""
    backward_s: tuple[float, ...]
    """Before each layer, in backward order."""
    end_s: float
    """Behind the backward pass: updates and moves that are left."""
    device_bytes: int
    """Bytes of states that are on the device."""


def paged(recipe: Recipe, flops: float, tiers: Tiers) -> Paging:
    """Plan the steps of a model. Raises `harp.angelptm.plan.CapacityError`."""
    layout = _layout(recipe, tiers)
    trace = _trace(recipe, flops, layout, tiers)
    page = layout.page_bytes
    enough = layout.pages + SPARE  # a tier that holds all pages is as good as a larger one
    capacities = Capacities(*(min(each // page, enough)
                              for each in (tiers.device, tiers.host, tiers.disk)))
    rates = Rates(tiers.copy / page, tiers.disk_rate / page if tiers.disk_rate else 1.0)
    made = _timed(_steady(trace, capacities, rates, layout.pages), trace)
    waits = _waits(made, trace, rates)
    count = len(recipe.model.layers)
    return Paging(made, tuple(waits[:count]), tuple(waits[count:2 * count]), waits[-1],
                  min(layout.pages, capacities.device) * page)


def _layout(recipe: Recipe, tiers: Tiers) -> Layout:
    sizes = tuple(tensor.elements for tensor in recipe.model.tensors)
    made = Layout(sizes, recipe.gradient_bytes, tiers.page)
    together = -(-made.pages // MOST_PAGES)
    return replace(made, page_bytes=tiers.page * together)


def _trace(recipe: Recipe, flops: float, layout: Layout, tiers: Tiers) -> Trace:
    """Make the trace that the runtime would take of the first step."""
    beside, events = moving(recipe), []
    tensors = _tensors(recipe.model)
    for layer, own in zip(recipe.model.layers, tensors, strict=True):
        seconds = forward_s(recipe, layer, flops) + beside.get(layer.name, NONE).forward_s
        events.append(Event(_pages(layout, own, gradient=False), seconds))
    for layer, own in zip(recipe.model.layers[::-1], tensors[::-1], strict=True):
        seconds = backward_s(recipe, layer, flops) + beside.get(layer.name, NONE).backward_s
        events.append(Event(_pages(layout, own, gradient=True), seconds))
    events.append(Event(()))
    last = {page: number for number, event in enumerate(events) for page in event.pages}
    jobs = []
    for chunk in range(layout.chunks):
        pages = layout.pages_to_update(chunk)
        jobs.append(Job(pages, max(last.get(page, -1) for page in pages), chunk,
                        layout.chunk / tiers.update))
    return Trace(tuple(events), tuple(jobs), frozenset(range(layout.shown, 2 * layout.shown)))


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
def _steady(trace: Trace, capacities: Capacities, rates: Rates, pages: int) -> Plan:
    """Plan until a step ends as it began. The times of events do not tell traces apart here."""
    placement = first_placement(pages, capacities)
    for returns in (False, False, True):
        made = plan(trace, capacities, placement, rates, returns=returns)
        if [tier for tier, _ in made.end] == [tier for tier, _ in placement]:
            return made
        placement = made.end
    return made


def _timed(made: Plan, trace: Trace) -> Plan:
    """Put a trace's own jobs into a plan that was made for a trace of other times."""
    jobs = {job.chunk: job for job in trace.jobs}
    return replace(made, actions=tuple(jobs[action.chunk] if isinstance(action, Job) else action
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
    return [*waits, waits.pop() + max(estimate(made, trace, rates) - end_s, 0.0)]
