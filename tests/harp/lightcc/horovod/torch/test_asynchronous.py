"""Asynchronous collectives on torch's tensors."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

import harp.lightcc.horovod.torch as hvd


def test_a_text_in_place_of_a_reduction_is_refused(alone):
    with pytest.raises(ValueError, match=r"op is 'sum'; allowed are hvd\.Average, "):
        hvd.allreduce(torch.ones(2), op="sum")


def test_the_older_average_says_what_op_says_and_not_both(alone):
    data = torch.tensor([2.0, 4.0])
    for how in ({"average": True}, {"average": False}, {"op": hvd.Max}, {}):
        assert hvd.synchronize(hvd.allreduce_async(data, **how)).tolist() == [2.0, 4.0]
    with pytest.raises(ValueError, match="op and average say the same; give only op"):
        hvd.allreduce_async(data, average=True, op=hvd.Sum)
    with pytest.raises(NotImplementedError, match="Adasum is not supported; allowed are Average"):
        hvd.allreduce_async(data, op=hvd.Adasum)


def test_a_call_in_place_writes_to_memory_that_does_not_lie_in_a_row(alone):
    data = torch.zeros(3, 4).t()[::2]
    handle = hvd.broadcast_async_(data.fill_(7), 0)
    assert hvd.synchronize(handle) is data
    assert (data == 7).all()
    scaled = hvd.allreduce_async_(data, op=hvd.Sum, prescale_factor=3.0)
    assert hvd.synchronize(scaled) is data
    assert (data == 21).all()


def test_a_sparse_tensor_is_refused_in_a_sentence(alone):
    with pytest.raises(ValueError, match="sparse tensors have no collectives here; sparse_as_de"):
        hvd.allreduce_async(torch.eye(3).to_sparse())
