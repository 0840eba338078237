"""Plans of page moves: no capacity exceeded, no page lost or stale, and no plan loads less."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.angelptm.page_plan import (
    AHEAD,
    DEVICE,
    DISK,
    HOST,
    NOWHERE,
    REDUCE,
    Capacities,
    CapacityError,
    Event,
    Job,
    Move,
    Rates,
    Sharing,
    Trace,
    estimate,
    first_placement,
    plan,
    plan_ahead,
    relabel,
)
from tests.support.levels import draws, long


class Bytes:
    """The content of each slot, which is there until something is copied to it."""

    def __init__(self, placement):
        self.version = [0] * len(placement)
        self.of = {place: (page, 0) for page, place in enumerate(placement)}

    def move(self, move):
        if move.kept:
            assert self.of[move.target] == self.of[move.source]
        elif not move.empty:
            self.of[move.target] = self.of[move.source]

    def write(self, page, place):
        self.version[page] += 1
        self.of[place] = page, self.version[page]


class Memory:
    """Slots with contents, in which a plan is played: the oracle knows nothing of the planner."""

    def __init__(self, capacities, placement, scratch):
        self.capacities = capacities
        self.slots = {place: page for page, place in enumerate(placement)}
        self.places = list(placement)
        self.scratch = scratch
        self.bytes = Bytes(placement)

    def move(self, move, last_event):
        assert move.target not in self.slots
        assert 0 <= move.target[1] < self.capacities[move.target[0]]
        assert self.slots.pop(move.source) == move.page
        assert abs(move.source[0] - move.target[0]) == 1
        if move.source[0] == DEVICE:
            assert move.after >= last_event.get(move.page, -1)
        if move.empty:
            assert move.page in self.scratch
            self.bytes.of[move.source] = self.bytes.of[move.target] = None
        self.bytes.move(move)
        self.slots[move.target] = move.page
        self.places[move.page] = move.target

    def write(self, page):
        self.bytes.write(page, self.places[page])

    def read(self, page):
        assert self.bytes.of[self.places[page]] == (page, self.bytes.version[page])


def play(made, trace, capacities, placement):
    """Do the actions as late as they may be, and then as early."""
    for early in (False, True):
        memory = Memory(capacities, placement, trace.scratch)
        last, done, updated = {}, 0, []

        def act(action, over, memory=memory, last=last, updated=updated):
            if isinstance(action, Move):
                memory.move(action, last)
            else:
                assert all(memory.places[page][0] < DISK for page in action.pages)
                updated.append(action.chunk)
                for page in action.pages:
                    memory.read(page)
                    memory.write(page)
            assert action.after < over

        for number, (event, need) in enumerate(zip(trace.events, made.need, strict=True)):
            while done < need or (early and done < len(made.actions)
                                  and made.actions[done].after < number):
                act(made.actions[done], number)
                done += 1
            for page in event.pages:
                assert memory.places[page][0] == DEVICE
                if page in trace.scratch:
                    memory.write(page)
                else:
                    memory.read(page)
            last.update(dict.fromkeys(event.pages, number))
        for action in made.actions[done:]:
            act(action, len(trace.events))
        assert tuple(memory.places) == made.end
        assert sorted(updated) == sorted(job.chunk for job in trace.jobs)


@st.composite
def steps(draw):
    """Draw traces as training makes them, and others: parameters, gradients, moments."""
    chunks = draw(st.integers(1, 8))
    few = st.lists(st.integers(0, chunks - 1), min_size=1, max_size=min(chunks, 2), unique=True)
    forward = draw(st.lists(few, min_size=1, max_size=10))
    events = [Event(tuple(pages), 0.001) for pages in forward]
    final = {}
    for pages in reversed(forward):
        events.append(Event(tuple(pages), 0.002))
        for page in pages:
            events.append(Event((chunks + page,), 0.0005))
            final[page] = len(events) - 1
    jobs = tuple(Job(tuple(chunk + kind * chunks for kind in range(4)), after, chunk, 0.001)
                 for chunk, after in final.items())
    scratch = frozenset(chunks + chunk for chunk in final)
    read = frozenset(range(draw(st.sampled_from([0, chunks]))))
    pages = 4 * chunks
    device = draw(st.integers(2, pages + 1))
    disk = draw(st.sampled_from([0, pages + 1]))
    host = draw(st.integers(6, pages + 6)) if disk else max(6, pages - device + 1)
    return Trace(tuple(events), jobs, scratch, read), Capacities(device, host, disk), pages


@pytest.mark.parametrize("ahead", AHEAD)
def test_the_backward_pass_waits_for_no_update_that_is_behind_it(ahead):
    """All is resident: no event but the end waits for anything."""
    layers = 4
    events = [Event((layer,)) for layer in (*range(layers), *reversed(range(layers)))]
    jobs = tuple(Job(tuple(range(layer, 4 * layers, layers)), 2 * layers - 1 - layer, layer)
                 for layer in range(layers))
    trace = Trace((*events, Event(())), jobs)
    placement = first_placement(4 * layers, Capacities(4 * layers, 0))
    made = plan_ahead(trace, Capacities(4 * layers, 0), placement, ahead)
    assert len(made.actions) == layers
    assert set(made.need) == {0}


def test_an_event_waits_for_the_job_of_its_page_and_not_for_those_of_others():
    """A gradient that is written again waits until its page has been reduced."""
    trace = Trace((Event((0,)), Event((1,)), Event((1,)), Event((0,)), Event(())),
                  (Job((0,), 0, 0, before=3), Job((1,), 2, 1)))
    made = plan_ahead(trace, Capacities(2, 0), ((DEVICE, 0), (DEVICE, 1)), 0)
    assert [job.chunk for job in made.actions] == [0, 1]
    assert made.need == (0, 0, 0, 1, 1)


@settings(max_examples=draws(200), deadline=None)
@given(steps(), st.sampled_from(AHEAD))
def test_late_updates_lose_no_gradient_and_are_over_when_it_is_written_again(step, ahead):
    trace, capacities, pages = step
    chunks = pages // 4
    first = {page: number for number, event in reversed(list(enumerate(trace.events)))
             for page in event.pages}
    order = sorted(trace.jobs, key=lambda job: first[chunks + job.chunk])
    late = tuple(replace(job, before=(due := first[chunks + job.chunk]),
                         after=number * due // len(order) - 1)
                 for number, job in enumerate(order))
    trace = replace(trace, jobs=late)
    placement = first_placement(pages, capacities)
    for _ in range(3):
        try:
            made = plan_ahead(trace, capacities, placement, ahead)
        except CapacityError:
            return
        play(made, trace, capacities, placement)
        for job in late:
            assert made.actions.index(job) < made.need[job.before]
        placement = made.end


@long
@settings(max_examples=400, deadline=None)
@given(steps(), st.lists(st.sampled_from(AHEAD), min_size=3, max_size=3))
def test_a_plan_returns_from_wherever_plans_have_left_pages(step, aheads):
    """Which plan was taken depends on rates, so a step may begin with a host that is full."""
    trace, capacities, pages = step
    placement = first_placement(pages, capacities)
    try:
        for ahead in aheads[:2]:
            placement = plan_ahead(trace, capacities, placement, ahead).end
        plan_ahead(trace, capacities, placement, aheads[2])
    except CapacityError:
        return
    made = plan_ahead(trace, capacities, placement, aheads[2], returns=True)
    play(made, trace, capacities, placement)
    assert [tier for tier, _ in made.end] == [tier for tier, _ in placement]


@settings(max_examples=draws(300), deadline=None)
@given(steps(), st.sampled_from(AHEAD))
def test_no_page_is_lost_or_stale_and_no_capacity_exceeded(step, ahead):
    trace, capacities, pages = step
    placement = first_placement(pages, capacities)
    for _ in range(3):  # a step begins where the one before ended
        made = plan_ahead(trace, capacities, placement, ahead)
        play(made, trace, capacities, placement)
        placement = made.end


@settings(max_examples=draws(200), deadline=None)
@given(steps(), st.sampled_from(AHEAD))
def test_a_plan_that_returns_serves_the_next_step(step, ahead):
    trace, capacities, pages = step
    placement = plan_ahead(trace, capacities, first_placement(pages, capacities), ahead).end
    made = plan_ahead(trace, capacities, placement, ahead, returns=True)
    play(made, trace, capacities, placement)
    assert [tier for tier, _ in made.end] == [tier for tier, _ in placement]


@settings(max_examples=draws(100), deadline=None)
@given(steps(), st.randoms(use_true_random=False))
def test_a_plan_serves_pages_that_lie_in_other_slots(step, random):
    trace, capacities, pages = step
    begin = first_placement(pages, capacities)
    slots = [random.sample(range(capacities[tier]), capacities[tier]) for tier in range(3)]
    other = tuple((tier, slots[tier][slot]) for tier, slot in begin)
    made = relabel(plan_ahead(trace, capacities, begin, 2), begin, other)
    play(made, trace, capacities, other)


@settings(max_examples=50, deadline=None)
@given(steps())
def test_the_chosen_plan_is_the_fastest_of_those_tried_and_no_faster_than_its_parts(step):
    trace, capacities, pages = step
    placement, rates = first_placement(pages, capacities), Rates(300.0, 100.0)
    made = plan(trace, capacities, placement, rates)
    took = estimate(made, trace, rates)
    assert took <= min(estimate(plan_ahead(trace, capacities, placement, ahead), trace, rates)
                       for ahead in AHEAD) + 1e-12
    copied = [move for move in made.moves if move.copies]
    assert took >= sum(event.seconds for event in trace.events) - 1e-9
    assert took >= sum(move.by_disk for move in copied) / rates.disk - 1e-9
    assert took >= sum(not move.by_disk for move in copied) / rates.copy - 1e-9


def fewest_loads(trace, device, begin):
    """Try every choice."""
    @cache
    def best(number, there):
        if number == len(trace.events):
            return 0
        pages = frozenset(trace.events[number].pages)
        loads = pages - there
        kept = there - pages
        room = device - len(pages)
        choices = itertools.combinations(sorted(kept), min(room, len(kept)))
        return len(loads) + min(best(number + 1, pages | frozenset(stay)) for stay in choices)
    return best(0, begin)


@settings(max_examples=draws(150), deadline=None)
@given(st.integers(2, 6), st.integers(2, 4), st.data())
def test_no_plan_loads_less(pages, device, data):
    some = st.lists(st.integers(0, pages - 1), min_size=1, max_size=device, unique=True)
    once = tuple(Event(tuple(pages)) for pages in data.draw(st.lists(some, min_size=1, max_size=8)))
    capacities = Capacities(device, pages + 1)
    placement = begun = first_placement(pages, capacities)
    begin = frozenset(page for page, (tier, _) in enumerate(placement) if tier == DEVICE)
    for times in (1, 3):
        trace = Trace(once * times)
        assert loads_of(plan_ahead(trace, capacities, begun, 0)) == fewest_loads(
            trace, device, begin)
    # Steps are planned one by one, and none loads for the next one: that costs a device of pages.
    steps_n, total = 6, 0
    for _ in range(steps_n):
        made = plan_ahead(Trace(once), capacities, placement, 0)
        placement = made.end
        total += loads_of(made)
    assert total <= fewest_loads(Trace(once * steps_n), device, begin) + device


def loads_of(made):
    return sum(move.target[0] == DEVICE for move in made.moves)


def test_what_fits_never_moves():
    trace = Trace((Event((0, 1)), Event((2,))), (Job((0, 3), 1, 0),))
    made = plan(trace, Capacities(4, 0), first_placement(4, Capacities(4, 0)))
    assert made.moves == []


def test_a_step_that_needs_too_much_at_once_is_refused():
    capacities = Capacities(2, 6)
    with pytest.raises(CapacityError, match="the device is full"):
        plan(Trace((Event((0, 1, 2)),)), capacities, first_placement(6, capacities))
    with pytest.raises(CapacityError, match="9 pages do not fit into 2 of the device, 6 of the h"):
        first_placement(9, capacities)


@pytest.mark.parametrize(("capacities", "least"), [
    (Capacities(2, 2, 108), 4), (Capacities(2, 1), 2)])
def test_a_host_without_room_to_move_pages_is_refused_for_that(capacities, least):
    """Not for the sum of the tiers, which may be large enough."""
    with pytest.raises(CapacityError, match=f"the host has room for {capacities.host} pages; "
                                            f"{least} or more are possible where the device has"):
        first_placement(100, capacities)


def test_loads_begin_before_they_are_needed():
    """In a sweep over more pages than fit each page leaves when it was used."""
    trace = Trace(tuple(Event((page,), 0.01) for page in range(12)))
    capacities, rates = Capacities(4, 12), Rates(copy=250.0)
    placement = first_placement(12, capacities)
    took = [estimate(plan_ahead(trace, capacities, placement, ahead), trace, rates)
            for ahead in (0, 2)]
    assert took[0] > 0.12 + 0.01
    assert took[1] == pytest.approx(0.12)
    assert plan(trace, capacities, placement, rates).ahead > 0


def test_a_gradient_of_two_updates_is_of_use_until_the_second():
    """A page of 16-bit gradients has two chunks, whose late updates may lie apart."""
    trace = Trace((Event((0,)), Event((1,)), Event((0,)), Event((2,)), Event(())), (
        Job((2, 3), -1, 0, before=3), Job((2, 4), 1, 1, before=3)), frozenset({2}))
    capacities, placement = Capacities(2, 6), ((DEVICE, 0), (HOST, 0), (DEVICE, 1), (HOST, 1),
                                               (HOST, 2))
    play(plan_ahead(trace, capacities, placement, 0), trace, capacities, placement)


def test_gradients_that_are_of_no_use_are_not_copied():
    trace = Trace((Event((0,)), Event((1,)), Event((2,))), (Job((0, 1), 1, 0),), frozenset({1}))
    capacities = Capacities(1, 3)
    placement = first_placement(3, capacities)
    at_once, later = (
        [move.empty for move in plan_ahead(trace, capacities, placement, ahead).moves
         if move.page == 1] for ahead in (0, 1))
    assert at_once == [True, True]  # it came to be written, and left when its job was done
    assert later == [True, False]


def sweep(capacities, jobs=(), **more):
    """Plan a step that reads twelve pages and begins anew."""
    trace = Trace(tuple(Event((page,)) for page in (*range(12), 0)), jobs, **more)
    return plan_ahead(trace, capacities, first_placement(12, capacities), 0).moves


@pytest.mark.parametrize(("capacities", "lowest"), [
    (Capacities(4, 10), HOST), (Capacities(2, 4, 20), DISK)], ids=["host", "disk"])
def test_what_is_only_read_goes_back_to_where_it_was_and_is_not_copied(capacities, lowest):
    """Pages that begin above the lowest tier were not there before."""
    first = {page for page, (tier, _) in enumerate(first_placement(12, capacities))
             if tier < lowest}
    for pages, copied in ((range(12), False), ((), True)):
        down = [move for move in sweep(capacities, read=frozenset(pages))
                if move.target[0] == lowest and move.page not in first]
        assert down
        assert {move.copies for move in down} == {copied}


def test_what_an_update_has_changed_is_copied():
    read = frozenset(range(12))
    job = Job((5,), 5, 0)
    for jobs, copied in (((), False), ((job,), True)):
        moves = sweep(Capacities(4, 10), jobs, read=read)
        down, = [move for move in moves if move.page == 5 and move.target > move.source]
        assert down.copies == copied


def test_a_page_that_leaves_soon_is_updated_where_its_content_still_is():
    """On the device it would be copied back, since the update has changed it."""
    trace = Trace(tuple(Event((page,)) for page in (*range(12), 0)), (Job((5, 12), 5, 0),),
                  read=frozenset(range(12)))
    capacities = Capacities(4, 10)
    made = plan_ahead(trace, capacities, first_placement(13, capacities), 0)
    _, down = [move for move in made.moves if move.page == 5]
    assert not down.copies
    assert made.actions.index(down) < made.actions.index(trace.jobs[0])


def test_a_page_that_stays_is_updated_on_the_device():
    trace = Trace(tuple(Event((page,)) for page in (0, 1, 2, 0, 1, 2)), (Job((1, 3), 1, 0),),
                  read=frozenset(range(3)))
    placement = tuple((HOST, page) for page in range(4))
    made = plan_ahead(trace, Capacities(3, 6), placement, 0)
    assert [move.target[0] for move in made.moves] == [DEVICE] * 3


def test_what_is_gathered_anew_is_copied_where_the_old_content_was():
    """A late update drops what came from the host before it."""
    trace = Trace((Event((0,)), Event((0,)), Event((1,)), Event(())),
                  (Job((4, 5, 6, 7), 0, 0, before=1, drops=(0,)),),
                  read=frozenset((0, 1)), sharing=Sharing(2, 2, drops=False))
    placement = ((HOST, 0), (NOWHERE, 1), (NOWHERE, 2), (NOWHERE, 3),
                 *((HOST, slot) for slot in range(1, 5)))
    moves = plan_ahead(trace, Capacities(1, 8), placement, 0).moves
    down, = [move for move in moves if move.page == 0 and move.target[0] == HOST]
    assert down.copies


class Window:
    """State of one of several ranks while a plan is played, and the calls of all ranks."""

    def __init__(self, trace, capacities, placement):
        self.sharing, self.capacities = trace.sharing, capacities
        self.places = list(placement)
        self.slots = {place: page for page, place in enumerate(placement) if place[0] < NOWHERE}
        self.age = [0] * self.sharing.shown
        """Updates of each page's parameters, and those that the copy in the window has seen."""
        self.seen = [None] * self.sharing.shown
        self.written, self.reduced = set(), []
        self.calls, self.bytes = [], Bytes(placement)

    def move(self, move, last):
        assert self.places[move.page] == move.source
        shown, own = self.sharing.shown, None
        if move.source[0] < NOWHERE:
            assert self.slots.pop(move.source) == move.page
            if move.source[0] == DEVICE:
                assert move.after >= last.get(move.page, -1)
        elif move.page < shown:
            own = 2 * shown + move.page // self.sharing.ranks
            assert self.places[own][0] <= HOST
            assert not move.empty
            self.seen[move.page] = self.age[move.page]
            self.calls.append(("gather", move.page))
        else:
            assert move.empty
        if move.target[0] == NOWHERE:
            assert move.page < 2 * shown
            assert move.page not in self.written
        else:
            assert move.target not in self.slots
            assert move.target[1] < self.capacities[move.target[0]]
            self.slots[move.target] = move.page
        if move.source[0] == NOWHERE:
            self.bytes.write(move.page, move.target)
        elif move.target[0] < NOWHERE:
            self.bytes.move(move)
        self.places[move.page] = move.target

    def job(self, job):
        assert all(self.places[page][0] <= HOST for page in job.pages)
        for page in job.pages:
            self.bytes.write(page, self.places[page])
        shown, ranks = self.sharing.shown, self.sharing.ranks
        if job.kind == REDUCE:
            self.written.remove(shown + job.chunk)
            self.reduced.append(job.chunk)
            self.calls.append(("reduce", job.chunk))
        else:
            for page in range(job.chunk * ranks, min((job.chunk + 1) * ranks, shown)):
                assert shown + page not in self.written
                self.age[page] += 1

    def event(self, event):
        shown = self.sharing.shown
        for page in event.pages:
            assert self.places[page][0] == DEVICE
            if page < shown:
                assert self.seen[page] == self.age[page]
            else:
                self.written.add(page)
                self.bytes.write(page, self.places[page])


@st.composite
def shared_steps(draw):
    """Draw steps of a rank in float32 that reduce each page of the window once or twice."""
    ranks, shown = draw(st.sampled_from([2, 3])), draw(st.integers(1, 8))
    kept, micro = -(-shown // ranks), draw(st.sampled_from([1, 2]))
    sharing = Sharing(shown, ranks, draw(st.booleans()))
    events, jobs, last, reduced = [], [], {}, {}
    few = st.lists(st.integers(0, shown - 1), min_size=1, max_size=min(shown, 2), unique=True)
    for _ in range(micro):
        forward = draw(st.lists(few, min_size=1, max_size=8))
        events += [Event(tuple(pages), 0.001) for pages in forward]
        final = {}
        for pages in reversed(forward):
            events.append(Event(tuple(pages), 0.002))
            for page in pages:
                if page in reduced:
                    at = reduced.pop(page)
                    jobs[at] = Job(**{**vars(jobs[at]), "before": len(events)})
                events.append(Event((shown + page,), 0.0005))
                final[page] = len(events) - 1
        for page, after in final.items():
            reduced[page] = len(jobs)
            own = 2 * shown + kept + page // ranks
            jobs.append(Job((shown + page, own), after, page, 0.001, REDUCE, drops=(shown + page,)))
    for number, event in enumerate(events):
        last.update(dict.fromkeys(event.pages, number))
    events.append(Event(()))
    for chunk in sorted({page // ranks for page in last if page < shown}):
        drops = tuple(range(chunk * ranks, min((chunk + 1) * ranks, shown)))
        after = max(last.get(page, -1) for one in drops for page in (one, shown + one))
        own = tuple(2 * shown + kind * kept + chunk for kind in range(4))
        jobs.append(Job(own, after, chunk, 0.001, drops=drops))
    pages = 2 * shown + 4 * kept
    device, later = draw(st.integers(2, pages)), 2 * shown
    disk = draw(st.sampled_from([0, pages + 1]))
    host = draw(st.integers(8, pages + 8)) if disk else 4 * kept + later + 2
    trace = Trace(tuple(events), tuple(jobs), read=frozenset(range(shown)), sharing=sharing)
    return trace, Capacities(device, host, disk), pages


@settings(max_examples=draws(300), deadline=None)
@given(shared_steps(), st.sampled_from(AHEAD))
def test_several_ranks_gather_what_is_new_and_lose_no_gradient(step, ahead):
    trace, capacities, pages = step
    placement = first_placement(pages, capacities, 2 * trace.sharing.shown)
    for number in range(4):
        made = plan_ahead(trace, capacities, placement, ahead, returns=number > 1)
        calls = []
        for early in (False, True):
            window, last, done = Window(trace, capacities, placement), {}, 0
            if number:
                window.seen = [age if where[0] < NOWHERE else None for age, where
                               in zip(window.age, placement, strict=False)]

            def act(action, over, window=window, last=last):
                assert action.after < over
                if isinstance(action, Move):
                    window.move(action, last)
                else:
                    window.job(action)

            for event, (what, need) in enumerate(zip(trace.events, made.need, strict=True)):
                while done < need or (early and done < len(made.actions)
                                      and made.actions[done].after < event):
                    act(made.actions[done], event)
                    done += 1
                window.event(what)
                last.update(dict.fromkeys(what.pages, event))
            for action in made.actions[done:]:
                act(action, len(trace.events))
            assert tuple(window.places) == made.end
            assert not window.written
            calls.append(window.calls)
        assert calls[0] == calls[1]
        if number > 1:
            assert [tier for tier, _ in made.end] == [tier for tier, _ in placement]
        placement = made.end
