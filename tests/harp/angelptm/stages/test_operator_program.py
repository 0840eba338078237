"""A model as a graph of operators, by torch.export or module by module."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from harp.angelptm import CutError, pipeline
from harp.angelptm.stages import operator_program
from tests.harp.angelptm.stages.models import batch, made


def test_a_model_that_looks_at_values_is_refused_at_its_line():
    example, _ = batch("choosing", 2)
    with pytest.raises(CutError) as error:
        pipeline(made("choosing"), example, stages=2)
    said = str(error.value)
    assert said.startswith("torch.export cannot follow Choosing at ")
    assert "models.py, line " in said
    assert "`if x.sum() > 0:`" in said
    assert said.endswith('pipeline(..., between="modules")')


def test_layers_are_named_by_the_list_that_they_are_in():
    example, _ = batch("t5", 2)
    followed = operator_program.exported(made("t5"), example, {})
    layers = {operator_program.layer_of(node) for node in followed.operators}
    assert {"words", "encoder.0", "encoder.1", "decoder.0", "decoder.1"} <= layers


@pytest.mark.parametrize("take", [operator_program.exported, operator_program.by_modules])
def test_operators_and_their_parameters_are_those_of_the_model(take):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2, bias=False))
    program = take(model, (torch.ones(2, 3),), {})
    assert len(program.inputs) == len(program.outputs) == 1
    assert len(program.order) == 4
    found = [program.parameters_of(node) for node in program.order]
    wanted = [[], [model[0].weight, model[0].bias], [], [model[2].weight]]
    for one, other in zip(found, wanted, strict=True):
        assert [id(each) for each in one] == [id(each) for each in other]


def test_tied_parameters_have_the_first_of_their_names():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    program = operator_program.exported(model, (torch.ones(2, 3),), {})
    assert {name for name, _ in program.attributes.values()} == {"0.weight"}


class Unfit(nn.Module):
    """Gives its parameter, or needs an argument that the example lacks."""

    def __init__(self, gives):
        super().__init__()
        self.own, self.gives = nn.Parameter(torch.ones(3)), gives

    def forward(self, x, more=None):
        return (x + 1, self.own) if self.gives else x + more


@pytest.mark.parametrize(("gives", "kwargs", "sentence"), [
    (True, {}, "the model gives something that is no result of an operator"),
    (False, {}, "the example has no value for the argument 'more'"),
    (False, {"more": 1}, "between modules, .* positional: keywords are given, more")])
def test_a_model_that_cannot_be_taken_apart_is_one_sentence(gives, kwargs, sentence):
    with pytest.raises(CutError, match=sentence):
        operator_program.by_modules(Unfit(gives), (torch.ones(3),), kwargs)
