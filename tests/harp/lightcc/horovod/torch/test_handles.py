"""Handles of calls under way: each is synchronized once."""

from __future__ import annotations

import pytest
import torch

import harp.lightcc.horovod.torch as hvd
from harp.lightcc.horovod.torch.handles import forget_unnamed, join_handles, named


def test_a_handle_gives_its_result_once(alone):
    handle = hvd.allreduce_async(torch.tensor([3.0]))
    assert hvd.synchronize(handle).item() == 3.0
    with pytest.raises(ValueError, match=f"handle {handle} is not known; each is synchronized o"):
        hvd.synchronize(handle)
    with pytest.raises(ValueError, match=f"handle {handle} is not known; it may have been synchro"):
        hvd.poll(handle)


def test_a_handle_of_several_is_over_when_all_are_and_gives_them_in_order(alone):
    handles = [hvd.allreduce_async(torch.tensor([float(n)])) for n in range(3)]
    handle = join_handles(handles)
    results = hvd.synchronize(handle)
    assert [result.item() for result in results] == [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="is not known"):
        hvd.poll(handles[0])


def test_calls_without_a_name_are_counted_by_kind_and_set_until_the_count_is_forgotten():
    other = hvd.ProcessSet([0])
    other.process_set_id = 7
    forget_unnamed()
    assert [named("allreduce", None, hvd.global_process_set) for _ in range(2)] == [
        "allreduce.noname.0", "allreduce.noname.1"]
    assert named("broadcast", None, hvd.global_process_set) == "broadcast.noname.0"
    assert named("allreduce", None, other) == "allreduce.noname.0"
    assert named("allreduce", "mine", other) == "allreduce.mine"
    forget_unnamed(other)
    assert named("allreduce", None, other) == "allreduce.noname.0"
    assert named("allreduce", None, hvd.global_process_set) == "allreduce.noname.2"
    forget_unnamed()


def test_a_rank_outside_of_a_set_is_refused(alone):
    with pytest.raises(ValueError, match="set"):
        hvd.allreduce(torch.ones(1), process_set=hvd.ProcessSet([0]))
