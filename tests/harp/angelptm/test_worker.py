"""The thread that runs a plan: each event has its pages, and each action waits for its events."""

from __future__ import annotations

import threading

import pytest

from harp._cnet import ffi
from harp.angelptm.cache import Cache
from harp.angelptm.page_plan import (
    DEVICE,
    DISK,
    HOST,
    Capacities,
    Event,
    Job,
    Plan,
    Trace,
    plan_ahead,
)
from harp.angelptm.pages import Layout
from harp.angelptm.worker import Worker
from tests.support import PATIENCE_S

LAYOUT = Layout((12000,), 4, 8192)
"""Six pages of each of four kinds."""


class Run:
    """A worker over pages in three tiers, and what it has updated."""

    def __init__(self, folder):
        self.cache = Cache(LAYOUT, Capacities(5, 10, 24), str(folder))
        self.updated, self.fails = [], False
        self.worker = Worker(self.cache, self.update)

    def update(self, job):
        if self.fails:
            raise ValueError("no such update")
        for page in job.pages:
            assert self.cache.where[page][0] < DISK
            self.bytes_of(page)[:] = bytes([100 + page]) * LAYOUT.page_bytes
        self.updated.append(job.chunk)

    def bytes_of(self, page):
        return ffi.buffer(ffi.cast("char *", self.cache.address(page)), LAYOUT.page_bytes)

    def plan(self, trace, ahead=2):
        return plan_ahead(trace, self.cache.capacities, tuple(self.cache.where), ahead)


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path)
    yield made
    made.worker.close()
    made.cache.close()
    assert all(thread.name != "angelptm" for thread in threading.enumerate())


@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_every_event_finds_its_pages_as_they_were_left(run, ahead):
    """Two steps: pages go to the disk and come back, and updates write some of them."""
    assert {tier for tier, _ in run.cache.where} == {DEVICE, HOST, DISK}
    events = tuple(Event((page, page + 1)) for page in (0, 2, 4, 8, 14, 20, 3, 9))
    jobs = (Job((8, 14), 3, 7), Job((0, 20), 5, 8))
    trace, known = Trace((*events, Event(())), jobs), {}
    for _ in range(2):
        run.worker.run(run.plan(trace, ahead))
        for number, event in enumerate(trace.events):
            run.worker.wait(number)
            for page in event.pages:
                assert run.cache.where[page][0] == DEVICE
                given = bytes(run.bytes_of(page))
                updated = bytes([100 + page]) * LAYOUT.page_bytes
                assert given in {known.get(page, given), updated}
                known[page] = bytes([page]) * LAYOUT.page_bytes
                run.bytes_of(page)[:] = known[page]
        run.worker.finish(len(trace.events))
    assert sorted(run.updated) == [7, 7, 8, 8]


def test_an_action_waits_until_its_event_is_over(run):
    job = Job((0,), 1, 5)
    run.worker.run(Plan((job,), (0, 0, 1), tuple(run.cache.where)))
    run.worker.wait(0)
    run.worker.wait(1)
    assert run.updated == []
    run.worker.wait(2)
    assert run.updated == [5]
    run.worker.finish(3)


def test_no_action_of_later_events_begins_once_a_plan_is_left(run):
    jobs = tuple(Job((0,), number, number) for number in range(4))
    run.worker.run(Plan(jobs, (0, 0, 0, 0), tuple(run.cache.where)))
    run.worker.wait(2)
    run.worker.finish(1, stops=True)
    assert run.updated == [0, 1]
    run.worker.run(Plan(jobs, (0, 0, 0, 0), tuple(run.cache.where)))
    run.worker.finish(4)
    assert run.updated == [0, 1, 0, 1, 2, 3]


def test_an_error_of_the_thread_is_raised_to_the_one_that_waits(run):
    run.fails = True
    run.worker.run(Plan((Job((0,), -1, 0),), (0, 1), tuple(run.cache.where)))
    run.worker.wait(0)
    raised = []

    def wait():
        try:
            run.worker.wait(1)
        except ValueError as error:
            raised.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(PATIENCE_S)
    assert raised == ["no such update"]
