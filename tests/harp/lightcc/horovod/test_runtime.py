"""Ranks as threads: fusion, top-k, the timeline, stalls and tuning, on memory of numpy."""

from __future__ import annotations

import contextlib
import logging
import threading
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from harp.lightcc.horovod.horovod_errors import DuplicateNameError, HorovodInternalError
from harp.lightcc.horovod.horovod_settings import Settings
from harp.lightcc.horovod.negotiation import Codec, Request
from harp.lightcc.horovod.runtime import REQUESTS, Entry, Runtime
from harp.lightcc.horovod.timeline import Timeline
from harp.lightcc.mover import Mover
from harp.lightcc.settings import LightSettings
from tests.harp.lightcc.test_group import PATIENCE_S, group_of

PROMPT = Settings(cycle_s=0.0)


@contextlib.contextmanager
def runtimes_of(ranks, settings=PROMPT, light=None, timeline=None, tuner=None):
    errors = [{} for _ in range(ranks)]
    with group_of(ranks, settings=light) as groups:
        made = [Runtime(group, settings, timeline if timeline and group.rank == 0 else Timeline(),
                        kept, tuner if group.rank == 0 else None)
                for group, kept in zip(groups, errors, strict=True)]
        try:
            yield made, errors
        finally:
            for runtime in made:
                runtime.close()


def gradient(name, data, detail="sum", **more):
    return Entry(Request("allreduce", name, "float32", data.shape, data.nbytes, detail, **more),
                 data.view(np.uint8), lambda _: data)


def reduce_all(runtimes, tensors, **more):
    """Each rank asks for its tensors, in another order than the others."""
    begun = []
    for rank, runtime in enumerate(runtimes):
        entries = [gradient(f"t{at}", data, **more) for at, data in enumerate(tensors[rank])]
        entries = entries[rank:] + entries[:rank]
        runtime.enqueue(entries)
        begun += entries
    for entry in begun:
        entry.future.result(PATIENCE_S)


def test_a_message_that_comes_after_the_thread_has_ended_is_not_answered():
    with runtimes_of(2) as (runtimes, _):
        late = Future()
        late.set_result(Codec().pack_requests([]))
        runtimes[0]._inbox.put(runtimes[0]._stop_serving)
        runtimes[0]._thread.join()
        runtimes[0]._inbox.put(partial(runtimes[0]._take_message, 1, REQUESTS, late))
        runtimes[0].close()


def test_a_name_under_way_is_refused_at_once_and_the_first_call_goes_on():
    data = np.ones((2, 3), "f4")
    with runtimes_of(2) as (runtimes, _):
        first = gradient("a", data[0])
        runtimes[0].enqueue([first])
        with pytest.raises(DuplicateNameError, match=r"^a is under way; ask for the tensor again"):
            runtimes[0].enqueue([gradient("b", data[0]), gradient("a", data[0])])
        for runtime, own in zip(runtimes, data, strict=True):
            runtime.enqueue([gradient("b", own.copy())])  # was not asked for with a
        runtimes[1].enqueue([gradient("a", data[1])])
        assert first.future.result(PATIENCE_S).tolist() == [2.0] * 3
        reduce_all(runtimes, [[own] for own in data])
        reduce_all(runtimes, [[own] for own in data])  # the same name, when it is over
    assert data.tolist() == [[8.0] * 3] * 2


def test_after_a_failure_a_name_that_was_under_way_raises_the_failure():
    with runtimes_of(2) as (runtimes, _):
        own = [gradient("a", np.ones(3, "f4")) for _ in range(3)]
        runtimes[0].enqueue([own[0]])
        runtimes[1].close()
        for entry in own[1:]:
            with pytest.raises(HorovodInternalError):
                own[0].future.result(PATIENCE_S)
            runtimes[0].enqueue([entry])
            own[0] = entry
        with pytest.raises(HorovodInternalError):
            own[0].future.result(PATIENCE_S)


@pytest.mark.parametrize("threshold", [0, 4000, 1 << 20])
def test_sums_are_right_whatever_travels_together(threshold):
    random = np.random.default_rng(1)
    tensors = [[random.integers(-9, 9, size).astype("f4") for size in (1, 500, 0, 999, 7, 2000)]
               for _ in range(3)]
    wanted = [np.sum(column, axis=0) for column in zip(*tensors, strict=True)]
    with runtimes_of(3, replace(PROMPT, fusion_threshold_bytes=threshold)) as (runtimes, _):
        reduce_all(runtimes, tensors)
    for own in tensors:
        for data, total in zip(own, wanted, strict=True):
            np.testing.assert_array_equal(data, total)


def test_rank_0_waits_no_cycle_for_more_when_all_ranks_wait():
    """The cycle is longer than the test's patience."""
    data = [np.ones(5, "f4") for _ in range(3)]
    with runtimes_of(3, Settings(cycle_s=1000 * PATIENCE_S)) as (runtimes, _):
        for _ in range(3):
            entries = [gradient("t", own) for own in data]
            for runtime, entry in zip(runtimes, entries, strict=True):
                runtime.enqueue([entry])
                runtime.hurry()
            for entry in entries:
                entry.future.result(PATIENCE_S)
    for own in data:
        np.testing.assert_array_equal(own, np.full(5, 27))


@pytest.mark.parametrize(("waits", "threads"), [
    (True, {"horovod 0", "horovod 1"}), (False, {"lightcc 0 calls", "lightcc 1 calls"})])
def test_a_call_that_is_waited_for_is_handed_to_no_other_thread(monkeypatch, waits, threads):
    go_on, ran = Mover.go_on, set()

    def go_on_and_tell(mover):
        ran.add(threading.current_thread().name)
        return go_on(mover)
    monkeypatch.setattr(Mover, "go_on", go_on_and_tell)
    entries = [gradient("t", np.ones(5, "f4")) for _ in range(2)]
    # Where they wait, the decision comes by their telling so, not by the clock.
    with runtimes_of(2, Settings(cycle_s=1000 * PATIENCE_S * waits)) as (runtimes, _):
        for runtime, entry in zip(runtimes, entries, strict=True):
            runtime.enqueue([entry])
            if waits:
                runtime.hurry()
        for entry in entries:
            entry.future.result(PATIENCE_S)
    assert ran == threads


@pytest.mark.parametrize("two_d", [False, True])
def test_topk_loses_no_gradient_though_buckets_change_from_step_to_step(two_d):
    light = LightSettings(topk=True, topk_ratio=0.05, topk_threshold_bytes=4000, two_d=two_d,
                          intra_size=2)
    random = np.random.default_rng(2)
    sizes = [1200, 300, 2500, 900]
    came = [np.zeros(size) for size in sizes]
    given = [np.zeros(size) for size in sizes]
    with runtimes_of(4, replace(PROMPT, fusion_threshold_bytes=9000), light) as (runtimes, errors):
        for step in range(12):
            tensors = [[random.integers(-99, 99, size).astype("f4") for size in sizes]
                       for _ in range(4)]
            for at in range(4):
                given[at] += np.sum([own[at] for own in tensors], axis=0)
            names = list(range(4))[step % 4:] + list(range(4))[:step % 4]
            begun = []
            for rank, runtime in enumerate(runtimes):
                entries = [gradient(f"t{at}", tensors[rank][at], sparse=True) for at in names]
                runtime.enqueue(entries[:1 + step % 3])
                runtime.enqueue(entries[1 + step % 3:])
                begun += entries
            for entry in begun:
                entry.future.result(PATIENCE_S)
            for at in range(4):
                for own in tensors[1:]:
                    np.testing.assert_array_equal(own[at], tensors[0][at])
                came[at] += tensors[0][at]
    assert any(errors)
    for at in range(4):
        left = sum(kept[f"t{at}"].astype("f8") for kept in errors if f"t{at}" in kept)
        np.testing.assert_allclose(came[at] + left, given[at], atol=1e-2)


def test_a_tensor_that_one_rank_does_not_ask_for_is_named_with_the_rank(caplog):
    with (caplog.at_level(logging.WARNING, "harp.horovod"),
          runtimes_of(3, replace(PROMPT, stall_s=0.05, stall_end_s=0.3)) as (runtimes, _)):
        entries = [gradient("conv1", np.ones(3, "f4")) for _ in range(2)]
        for runtime, entry in zip(runtimes, entries, strict=False):
            runtime.enqueue([entry])
        for entry in entries:
            with pytest.raises(HorovodInternalError) as error:
                entry.future.result(PATIENCE_S)
            assert str(error.value) == (
                "after 0.3 s conv1 waits for rank 2; ranks 0, 1 asked for it; "
                "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS ends the group then")
    assert [record.getMessage() for record in caplog.records] == [
        "after 0.05 s conv1 waits for rank 2; ranks 0, 1 asked for it"]


@pytest.mark.parametrize("leaver", [0, 2])
def test_a_rank_that_leaves_is_named_to_waiting_ranks(leaver):
    with runtimes_of(3) as (runtimes, _):
        runtimes[leaver].close()
        entries = [gradient("a", np.ones(3, "f4")) for _ in range(3)]
        for rank, runtime in enumerate(runtimes):
            if rank != leaver:
                runtime.enqueue([entries[rank]])
        for rank, entry in enumerate(entries):
            if rank != leaver:
                with pytest.raises(HorovodInternalError, match=f"rank {leaver} is gone"):
                    entry.future.result(PATIENCE_S)


def test_a_rank_that_cannot_begin_a_call_is_an_error_at_all_ranks():
    """As one that has no memory for what all ranks gather."""
    def make(_):
        raise MemoryError("no room")

    with runtimes_of(2) as (runtimes, _):
        data = np.ones(3, "f4")
        entries = [Entry(Request("allgather", "a", "float32", data.shape, data.nbytes, ""),
                         data.view(np.uint8), lambda _: data,
                         make=make if rank else lambda rows: np.empty(4 * rows, np.uint8))
                   for rank in range(2)]
        for runtime, entry in zip(runtimes, entries, strict=True):
            runtime.enqueue([entry])
        for entry in entries:
            with pytest.raises(HorovodInternalError, match="no room"):
                entry.future.result(PATIENCE_S)
