"""Works: torch's handles of collectives under way, and their futures."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support import PATIENCE_S
from tests.support.levels import long
from tests.support.torch_ranks import answers_of, start

torch = pytest.importorskip("torch")

from harp.lightcc.call_queue import OVER  # noqa: E402
from harp.lightcc.torch.work import DoneWork, LightWork, join_works, work_of  # noqa: E402

RANK = Path(__file__).with_name("rank.py")


@long
def test_works_that_are_over_keep_no_tensors():
    assert answers_of(start(RANK, "held", 2)) == [[], []]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_a_work_is_over_when_all_of_its_futures_are_and_it_has_finished(order):
    futures, finished, results = [Future() for _ in range(3)], [], [torch.ones(2)]
    work = LightWork(futures, results, lambda: finished.append(work.is_completed()))
    for place in order:
        assert not work.is_completed()
        assert finished == []
        futures[place].set_result(None)
    assert finished == [False]  # before those that wait go on
    assert work.wait(timedelta(seconds=PATIENCE_S))
    assert work.is_success()
    assert work.result() is results
    assert work.exception() is None


def test_an_error_of_a_future_or_at_the_end_is_the_works():
    futures = [Future(), Future()]
    work = LightWork(futures, [], lambda: pytest.fail("it has failed before"))
    futures[0].set_exception(ValueError("rank 1 is gone"))
    futures[1].set_result(None)
    over = Future()
    over.set_result(None)

    def fail():
        raise ValueError("rank 1 is gone")

    for failed in (work, LightWork([over, over], [], fail)):
        assert failed.is_completed()
        assert not failed.is_success()
        assert str(failed.exception()) == "rank 1 is gone"
        with pytest.raises(ValueError, match="rank 1 is gone"):
            failed.wait()


def test_a_wait_of_limited_time_says_so():
    work = LightWork([Future()], [])
    with pytest.raises(RuntimeError, match=r"the collective was not over after 0\.001 s"):
        work.wait(timedelta(milliseconds=1))
    assert not work.is_completed()


def test_a_call_that_was_over_at_once_is_done_and_joins_with_others():
    done, future = work_of(OVER, [torch.ones(1)]), Future()
    assert isinstance(done, DoneWork)
    assert done.wait()
    both = join_works([done, work_of(future, [])], ["both"])
    assert not both.is_completed()
    future.set_result(3)
    assert both.wait()
    assert both.result() == ["both"]


def test_a_message_from_any_rank_says_where_it_came_from():
    future = Future()
    future.set_result(3)
    assert LightWork([future], []).source_rank() == 3
