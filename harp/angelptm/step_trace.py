"""The jobs of a step, from the pages that its events touched.

An engine makes the trace of the step that it has just run (`harp.angelptm.steps`), the simulator
that of a model which it has only a description of (`sim.step.paging`). A page of gradients may be
reduced when the last of its gradients is there, and a chunk updated when all of its pages are.
Late updates take gradients of steps before: each is over before an event writes these anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harp.angelptm.page_plan import FAR, REDUCE, Event, Job, Sharing, Trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from harp.angelptm.pages import Layout


@dataclass(frozen=True)
class Work:
    """Treatment of gradients."""

    update_s: float
    """Seconds of an update of a chunk."""
    reduce_s: float = 0.0
    """Seconds of a reduction of a page."""
    at_end: bool = False
    """Whether no update may begin before the end: of clipping, or a scaled loss."""
    each: bool = False
    """Whether gradients are reduced at each micro-batch (ZeRO 2 and 3), or once a step."""
    sharing: Sharing | None = None
    """Of several ranks."""
    late: bool = False
    """Whether updates are by gradients of steps before."""


def make_trace(layout: Layout, events: Sequence[Event], ends: Sequence[int],
               chunks: Sequence[int], work: Work) -> Trace:
    """Make the trace of a step.

    Args:
        layout: where states lie.
        events: what touched pages; the last one is the end of the step, and touches none.
        ends: how many events are over at the end of each micro-batch.
        chunks: those that are updated.
        work: how gradients become updates.
    """
    shared = work.sharing is not None
    jobs = _reductions(layout, events, ends, work) if shared else []
    jobs += (_late_updates(layout, events, chunks, work) if work.late else
             _updates(layout, events, ends, chunks, work))
    parameters = frozenset(range(layout.shown))
    if shared:
        return Trace(tuple(events), tuple(jobs), read=parameters, sharing=work.sharing)
    scratch = frozenset(range(layout.shown, 2 * layout.shown))
    if work.late:  # the others hold sums that wait for a later step
        scratch &= {layout.kept + layout.page_of_chunk(chunk) for chunk in chunks}
    return Trace(tuple(events), tuple(jobs), scratch, parameters)


def _updates(layout: Layout, events: Sequence[Event], ends: Sequence[int],
             chunks: Iterable[int], work: Work) -> Iterator[Job]:
    """Give the updates of a step: each when its gradients are final."""
    last: dict[int, int] = {}
    for number, event in enumerate(events):
        last.update(dict.fromkeys(event.pages, number))
    end, shared = len(events) - 1, work.sharing is not None
    # A gradient of an earlier micro-batch is not known to be final before the end.
    last_batch = ends[-2] if len(ends) > 1 else 0
    for chunk in chunks:
        pages, drops = layout.pages_to_update(chunk), tuple[int, ...]()
        users = list(pages)
        if shared:
            drops = tuple(layout.shown_of(chunk))
            users = [*drops, *(layout.shown + page for page in drops)]
        after = max(last.get(page, -1) for page in users)
        if work.at_end or after < last_batch:
            after = end
        yield Job(pages, after, chunk, work.update_s, drops=drops)


def _late_updates(layout: Layout, events: Sequence[Event], chunks: Iterable[int],
                  work: Work) -> Iterator[Job]:
    """Give the updates by steps before: each before its gradients are written again.

    They are spread over the events, so that pages of parameters come in between.
    """
    first: dict[int, int] = {}
    for number, event in reversed(list(enumerate(events))):
        first.update(dict.fromkeys(event.pages, number))
    end, shared = len(events) - 1, work.sharing is not None
    due = {chunk: min(first.get(layout.shown + page, end) for page in layout.shown_of(chunk))
           for chunk in chunks}
    for number, chunk in enumerate(sorted(due, key=lambda chunk: (due[chunk], chunk))):
        drops = tuple(layout.shown_of(chunk)) if shared else ()
        yield Job(layout.pages_to_update(chunk), number * due[chunk] // len(due) - 1, chunk,
                  work.update_s, before=due[chunk], drops=drops)


def _reductions(layout: Layout, events: Sequence[Event], ends: Sequence[int],
                work: Work) -> list[Job]:
    """Give the reductions of a step: of each page when the last of its gradients is there."""
    jobs, begin, end = list[Job](), 0, len(events) - 1
    latest: dict[int, int] = {}
    """The number of each page's last reduction so far."""
    for stop in ends if work.each else ends[-1:]:
        last: dict[int, int] = {}
        for number in range(begin, stop):
            for page in events[number].pages:
                if layout.shown <= page < 2 * layout.shown:
                    last[page] = number
                    if page in latest:
                        at = latest.pop(page)
                        jobs[at] = replace(jobs[at], before=number)
        for page, number in last.items():
            latest[page] = len(jobs)
            own = layout.source_of(page - layout.shown)[0] + layout.kept
            jobs.append(Job((page, own), number, page - layout.shown, work.reduce_s, REDUCE,
                            end if work.at_end else FAR, (page,)))
        begin = stop
    return jobs
