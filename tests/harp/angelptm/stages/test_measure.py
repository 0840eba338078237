"""Times and sizes of operators, for which the model stays as it is."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from harp.angelptm import pipeline
from tests.harp.angelptm.stages.models import WIDTH, WORDS, batch, made


def test_no_cut_lies_between_a_value_and_its_change_in_place():
    example, _ = batch("rotary", 2)
    graph = pipeline(made("rotary"), example, stages=2).graph
    names = [operator.name for operator in graph.operators]
    assert names.index("add_") in graph.closed


class Counting(nn.Module):
    """Has a norm that counts, and drops some."""

    def __init__(self):
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)

    def forward(self, x):
        return self.two(nn.functional.dropout(self.norm(self.one(x)), 0.5, self.training))


@pytest.mark.parametrize("between", ["operators", "modules"])
def test_measuring_changes_nothing_in_the_model(between):
    model = Counting()
    model.one.weight.grad = torch.ones(8, 8)
    example = (torch.randn(4, 8),)
    before, state = copy.deepcopy(model), torch.get_rng_state()
    pipeline(model, example, stages=2, between=between)
    torch.testing.assert_close(model.state_dict(), before.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(model.one.weight.grad, torch.ones(8, 8))
    assert model.two.weight.grad is None
    assert torch.equal(torch.get_rng_state(), state)


def test_sizes_are_those_of_the_model():
    example, _ = batch("gpt", 2)
    model = made("gpt")
    pipe = pipeline(model, example, stages=2)
    assert sum(pipe.graph.parameter_bytes) == sum(one.nbytes for one in model.parameters())
    assert dict(pipe.shared()) == {"words.weight": {0, 1}}
    linear = next(one for one in pipe.graph.operators if one.name == "linear")
    assert linear.value_bytes == 2 * 12 * 3 * WIDTH * 4
    assert linear.layer == "blocks.0"
    assert WORDS * WIDTH * 4 in pipe.graph.parameter_bytes
    lines = pipe.describe().splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("stage 1: ")
