"""The jobs of a step from its events: each after what it needs, and before what needs it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.angelptm.page_plan import FAR, REDUCE, UPDATE, Event, Sharing
from harp.angelptm.pages import Layout, whole_page
from harp.angelptm.step_trace import Work, make_trace
from tests.support.levels import draws


@st.composite
def steps(draw, ranks):
    """Give a layout, and events as training makes them: both passes of each micro-batch."""
    sizes = tuple(draw(st.lists(st.integers(1000, 6000), min_size=2, max_size=5)))
    layout = Layout(sizes, draw(st.sampled_from([2, 4])), whole_page(8192, ranks), ranks)
    events, ends, used = [], [], set()
    for _ in range(draw(st.integers(1, 3))):
        numbers = draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=3))
        events += [Event(tuple(layout.pages_of(number))) for number in numbers]
        for number in dict.fromkeys(reversed(numbers)):
            events += [Event(tuple(layout.pages_of(number))),
                       Event(tuple(layout.pages_of(number, gradient=True)))]
        ends.append(len(events))
        used.update(numbers)
    chunks = sorted({chunk for number in used for chunk in layout.chunks_of(number)})
    return layout, [*events, Event(())], ends, chunks


def touches(events, pages):
    """Give the numbers of the events that have one of these pages."""
    return [number for number, event in enumerate(events) if set(event.pages) & set(pages)]


@settings(max_examples=draws(45))
@given(steps(1), st.booleans())
def test_an_update_comes_after_all_events_of_its_pages(step, at_end):
    layout, events, ends, chunks = step
    trace = make_trace(layout, events, ends, chunks, Work(0.5, at_end=at_end))
    assert [job.chunk for job in trace.jobs] == chunks
    assert trace.scratch == set(range(layout.shown, 2 * layout.shown))
    assert trace.read == set(range(layout.shown))
    for job in trace.jobs:
        assert job.pages == layout.pages_to_update(job.chunk)
        assert (job.kind, job.seconds) == (UPDATE, 0.5)
        last = max(touches(events, job.pages))
        known = not at_end and (len(ends) == 1 or last >= ends[-2])
        assert job.after == (last if known else len(events) - 1)


@settings(max_examples=draws(45))
@given(steps(1))
def test_a_late_update_is_over_before_its_gradients_are_written_again(step):
    layout, events, ends, chunks = step
    trace = make_trace(layout, events, ends, chunks, Work(0.5, late=True))
    assert sorted(job.chunk for job in trace.jobs) == chunks
    for job in trace.jobs:
        gradients = [layout.shown + page for page in layout.shown_of(job.chunk)]
        assert job.before == min(touches(events, gradients))
        assert -1 <= job.after < job.before
    assert [job.before for job in trace.jobs] == sorted(job.before for job in trace.jobs)
    held = {layout.shown + page for page in range(layout.shown)} - trace.scratch
    assert all(page not in layout.pages_to_update(chunk) for page in held for chunk in chunks)


@pytest.mark.parametrize("each", [False, True], ids=["once a step", "each micro-batch"])
@settings(max_examples=draws(45))
@given(st.integers(2, 3).flatmap(steps), st.booleans())
def test_ranks_reduce_a_page_when_its_last_gradient_is_there(each, step, at_end):
    layout, events, ends, chunks = step
    sharing = Sharing(layout.shown, layout.ranks, drops=True)
    work = Work(0.5, 0.25, at_end=at_end, each=each, sharing=sharing)
    trace = make_trace(layout, events, ends, chunks, work)
    assert trace.sharing is sharing
    assert trace.read == set(range(layout.shown))
    found = {}
    for job in trace.jobs:
        if job.kind == REDUCE:
            page, own = job.pages
            assert page == layout.shown + job.chunk
            assert own == layout.source_of(job.chunk)[0] + layout.kept
            found.setdefault(page, []).append(job)
    for page in range(layout.shown, 2 * layout.shown):
        written = touches(events, [page])
        begins = [0, *ends[:-1]] if each else [0]
        batches = [[at for at in written if begin <= at < end]
                   for begin, end in zip(begins, ends if each else ends[-1:], strict=True)]
        batches = [batch for batch in batches if batch]
        jobs = found.get(page, [])
        assert [job.after for job in jobs] == [batch[-1] for batch in batches]
        final = len(events) - 1 if at_end else FAR
        assert [job.before for job in jobs] == [
            *(batch[0] for batch in batches[1:]), *([final] if batches else [])]


@settings(max_examples=draws(45))
@given(st.integers(2, 3).flatmap(steps))
def test_an_update_of_several_ranks_drops_the_parameters_that_are_old_then(step):
    layout, events, ends, chunks = step
    sharing = Sharing(layout.shown, layout.ranks, drops=False)
    trace = make_trace(layout, events, ends, chunks, Work(0.5, sharing=sharing))
    updates = [job for job in trace.jobs if job.kind == UPDATE]
    assert [job.chunk for job in updates] == chunks
    for job in updates:
        assert job.drops == tuple(layout.shown_of(job.chunk))
        gone = touches(events, [*job.drops, *(layout.shown + page for page in job.drops)])
        assert job.after >= max(gone)
