"""Differentiable collectives: of one rank, each is the identity or a factor."""

from __future__ import annotations

import pytest
import torch

import harp.lightcc.horovod.torch as hvd

CALLS = {
    "allreduce": (lambda x: hvd.allreduce(x, op=hvd.Sum), 1),
    "a scaled allreduce": (lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=3.0,
                                                   postscale_factor=0.5), 1.5),
    "broadcast": (lambda x: hvd.broadcast(x, 0), 1), "allgather": (hvd.allgather, 1),
    "alltoall": (hvd.alltoall, 1),
    "reducescatter": (lambda x: hvd.reducescatter(x, op=hvd.Sum, prescale_factor=2.0), 2),
    "a group's allreduce": (lambda x: sum(hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum)), 3),
    "a group's allgather": (lambda x: sum(hvd.grouped_allgather([x, 2 * x])), 3),
    "a group's reducescatter": (lambda x: sum(hvd.grouped_reducescatter([x, x], op=hvd.Sum)), 2),
}


@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_of_one_rank_are_its_own_times_a_factor(name, alone):
    call, factor = CALLS[name]
    given = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    result = call(given)
    torch.testing.assert_close(result, factor * given)
    weights = torch.randn(4, 3, dtype=torch.float64)
    (result * weights).sum().backward()
    torch.testing.assert_close(given.grad, factor * weights)
