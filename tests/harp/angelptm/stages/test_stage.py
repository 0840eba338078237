"""A stage as a module: stages one after another are the model."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_unflatten

from harp.angelptm import pipeline
from harp.angelptm.stages.stage import Value, crossing, stage_module
from tests.harp.angelptm.stages.models import batch, loss_of, made


@pytest.mark.parametrize("name", ["gpt", "t5", "rotary"])
def test_stages_one_after_another_are_the_model_wherever_it_is_cut(name):
    example, target = batch(name, 2)
    whole, cut = made(name), made(name)
    loss_of(whole(*example), target).backward()
    pipe = pipeline(cut, example, stages=5)
    gaps = pipe.graph.boundaries
    parts = [0, *gaps[::7], len(pipe.program.order)]
    values = example
    for begin, end in pairwise(parts):
        values = stage_module(pipe.program, pipe.graph, begin, end)(*values)
        values = values if isinstance(values, tuple) else (values,)
    output = tree_unflatten(list(values), pipe.program.output_spec)
    loss_of(output, target).backward()
    for (each, own), other in zip(cut.named_parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, msg=each)


def test_a_value_that_skips_a_stage_is_relayed_with_its_gradient():
    class Skipping(nn.Module):
        def forward(self, x, y):
            return torch.tanh(torch.sin(x)) * y

    x, y = (torch.randn(4, 3, requires_grad=True) for _ in range(2))
    pipe = pipeline(Skipping(), (x, y), stages=2)
    middle = stage_module(pipe.program, pipe.graph, 3, 4)  # tanh alone
    assert [value.shape for value in crossing(pipe.graph, pipe.forms, 3)] == [(4, 3)] * 2
    one, other = (torch.randn(4, 3, requires_grad=True) for _ in range(2))
    relayed, own = middle(one, other)
    assert torch.equal(relayed, one)
    assert torch.equal(own, other.tanh())
    torch.autograd.backward([relayed, own], [torch.full((4, 3), 2.0), torch.ones(4, 3)])
    assert torch.equal(one.grad, torch.full((4, 3), 2.0))
    torch.testing.assert_close(other.grad, 1 - other.tanh() ** 2)


@pytest.mark.parametrize("differentiable", [False, True])
def test_a_form_makes_a_tensor_and_a_gradient_where_one_comes_back(differentiable):
    form = Value(torch.Size([2, 3]), torch.float64, differentiable)
    made = form.empty(torch.device("cpu"))
    assert (made.shape, made.dtype, made.requires_grad) == ((2, 3), torch.float64, differentiable)
    gradient = form.gradient(torch.device("cpu"))
    assert (gradient is not None) == differentiable
    assert gradient is None or (gradient.shape == (2, 3) and not gradient.requires_grad)
