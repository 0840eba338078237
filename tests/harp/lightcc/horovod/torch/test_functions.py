"""Broadcast and allgather of parameters, optimizer states and objects, in a job of one rank."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import harp.lightcc.horovod.torch as hvd
from harp.lightcc.horovod.torch.functions import broadcast_object_fn


def test_an_object_comes_as_it_was_given(alone):
    given = {"epoch": 3, "losses": [0.5, float("inf")], "name": "ä"}
    assert hvd.broadcast_object(given, 0) == given
    assert broadcast_object_fn(0)(given) == given
    assert hvd.allgather_object(given) == [given]


def test_parameters_are_named_or_numbered_and_others_are_refused(alone):
    model = nn.Linear(3, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for params in (model.state_dict(), model.named_parameters(), list(model.parameters()),
                   {"weight": model.weight, "epoch": 3}):
        hvd.broadcast_parameters(params, 0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match="invalid params of type int; allowed are a state_dict"):
        hvd.broadcast_parameters(3, 0)


@pytest.mark.parametrize(("make", "sparse"), [
    (lambda: nn.Linear(3, 2), False), (lambda: nn.Embedding(3, 2, sparse=True), True)])
def test_parameters_without_a_gradient_get_zeros_as_their_layer_has_them(make, sparse, alone):
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hvd.broadcast_optimizer_state(optimizer, 0, model)
    for parameter in model.parameters():
        assert parameter.grad.is_sparse == sparse
        assert not parameter.grad.to_dense().any()


def test_the_state_of_an_optimizer_stays_and_one_that_cannot_be_is_refused(alone):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    before = {key: value.clone() for key, value in optimizer.state[model.weight].items()}
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert all(torch.equal(optimizer.state[model.weight][key], value)
               for key, value in before.items())
    with pytest.raises(ValueError, match=r"cannot broadcast torch\.optim\.LBFGS state"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), 0)
