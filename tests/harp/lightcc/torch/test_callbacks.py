"""Callbacks of torch's futures: in their order, in one thread, and what they call."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support import PATIENCE_S
from tests.support.torch_ranks import answers_of, start

torch = pytest.importorskip("torch")

from harp.lightcc.torch.callbacks import (  # noqa: E402
    Callbacks,
    Lane,
    LightFuture,
    as_in,
    failed_value,
    here,
)

RANK = Path(__file__).with_name("rank.py")


def test_callbacks_may_call_collectives_and_wait_for_them():
    assert answers_of(start(RANK, "chained", 2)) == ["right"] * 2


class Group:
    """Notes the prefix that it was made with, and whether it was closed."""

    def __init__(self, prefix):
        self.prefix, self.is_closed = prefix, False

    def close(self):
        self.is_closed = True


def test_callbacks_run_one_after_another_in_the_order_in_which_they_were_chained():
    future, order, end = LightFuture(Lane("", "group")), [], threading.Event()
    for number in range(20):
        future.then(lambda _, number=number: order.append((number, threading.get_ident())))
    future.add_done_callback(lambda _: end.set())
    future.set_result([torch.ones(1)])
    assert end.wait(PATIENCE_S)
    assert [number for number, _ in order] == list(range(20))
    assert len({thread for _, thread in order} | {threading.get_ident()}) == 2


def test_an_error_reaches_the_future_of_a_callback_and_those_behind_it():
    future = LightFuture(Lane("", "group"))
    chained = future.then(lambda done: done.value()[0]).then(lambda done: done.value() + 1)
    future.set_exception(ValueError("rank 1 is gone"))
    for failed in (future, chained):
        with pytest.raises(ValueError, match="rank 1 is gone"):
            failed.wait()


def test_the_value_of_a_failed_future_raises_its_error_in_every_use():
    value = failed_value(ValueError("rank 1 is gone"))
    assert isinstance(value, torch.Tensor)
    for use in (lambda: value + 1, lambda: torch.cat([value, torch.ones(1)]), value.sum):
        with pytest.raises(ValueError, match="rank 1 is gone"):
            use()


def test_calls_of_callbacks_have_a_group_of_their_own_for_each_that_they_come_from():
    callbacks = Callbacks(Group)
    callbacks.name = "a"
    assert callbacks.group is callbacks.program_group
    assert callbacks.group.prefix == ""
    inner = as_in("/a", lambda: callbacks.group)
    assert inner.prefix == "callbacks/a/"
    assert as_in("/a", lambda: callbacks.group) is inner
    assert as_in("/a/a", lambda: callbacks.group).prefix == "callbacks/a/a/"
    assert here() == ""
    callbacks.close()
    assert [group.is_closed for group in callbacks.groups()] == [True] * 3
    assert as_in("/other", lambda: callbacks.group) is callbacks.program_group
