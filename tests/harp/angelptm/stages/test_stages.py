"""Pipelines against the model that is not cut: one process, and a process a rank."""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_unflatten

from harp.angelptm import CapacityError, CutError, Memory, pipeline
from harp.angelptm.stages import operator_program
from harp.angelptm.stages.stage import stage_module
from tests.harp.angelptm.stages.models import WIDTH, WORDS, batch, loss_of, made
from tests.support.levels import long_except
from tests.support.torch_ranks import answers_of, start

RANK = Path(__file__).with_name("stage_rank.py")

CASES = [
    (2, "lightcc", [("gpt", "operators", 2, "1f1b", 4),
                    ("rotary", "operators", 4, "interleaved", 4)]),
    (2, "lightcc", [("t5", "operators", 2, "gpipe", 3),
                    ("choosing", "modules", 4, "interleaved", 2),
                 ("t5", "layers", 4, "interleaved", 4)]),  # two stages of a rank share words
    (4, "gloo", [("t5", "operators", 4, "1f1b", 6), ("rotary", "operators", 4, "gpipe", 4),
                 ("gpt", "operators", 8, "interleaved", 8), ("gpt", "layers", 4, "1f1b", 4)]),
    (4, "lightcc", [("t5", "operators", 8, "interleaved", 4)]),
]
"""Ranks, backend; model, where cuts may be, stages, schedule, microbatches."""


@pytest.mark.parametrize(("ranks", "backend", "cases"), long_except(CASES, CASES[0]))
def test_ranks_have_the_gradients_of_the_whole_model(ranks, backend, cases):
    answers = answers_of(start(RANK, json.dumps(cases), ranks, BACKEND=backend))
    for case, found in zip(cases, zip(*answers, strict=True), strict=True):
        assert all(one["gaps"] == found[0]["gaps"] for one in found)
        names = {each for each, _ in made(case[0]).named_parameters()}
        assert {each for one in found for each in one["own"]} == names


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


def test_every_transfer_of_a_value_that_skips_stages_is_counted():
    example, _ = batch("t5", 2)
    graph = pipeline(made("t5"), example, stages=2).graph
    encoded = next(number for number in graph.outputs if number != graph.outputs[0])
    assert graph.operators[encoded].value_bytes == 2 * 12 * WIDTH * 4
    last = max(graph.boundaries)
    assert encoded in graph.crossing(last)
    assert 1 in graph.crossing(encoded)  # the decoder's tokens, which the encoder's stages relay


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


def test_a_model_that_looks_at_values_is_refused_at_its_line():
    example, _ = batch("choosing", 2)
    with pytest.raises(CutError) as error:
        pipeline(made("choosing"), example, stages=2)
    said = str(error.value)
    assert said.startswith("torch.export cannot follow Choosing at ")
    assert "models.py, line " in said
    assert "`if x.sum() > 0:`" in said
    assert said.endswith('pipeline(..., between="modules")')


def test_an_impossible_request_is_one_sentence():
    example, _ = batch("gpt", 2)
    with pytest.raises(CutError, match=r"between is 'blocks': operators, layers, modules are"):
        pipeline(made("gpt"), example, stages=2, between="blocks")
    with pytest.raises(CutError, match=r"500 stages are wanted: the model can be cut into 1 to"):
        pipeline(made("gpt"), example, stages=500)
    with pytest.raises(CapacityError, match=r"no cut into 2 stages fits into 0.0 MiB a stage"):
        pipeline(made("gpt"), example, stages=2, memory=Memory(1000))


def test_every_stage_has_a_parameter_where_the_model_has_enough():
    behind = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), *[nn.Softmax(-1) for _ in range(40)])
    pipe = pipeline(behind, (torch.ones(64, 4),), stages=2)
    assert all(list(pipe.module(stage).parameters()) for stage in range(2))


def test_a_rank_without_parameters_is_refused_with_a_sentence(monkeypatch):
    pipe = pipeline(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.ReLU()), (torch.ones(2, 4),),
                    stages=2)
    monkeypatch.setattr(dist, "get_world_size", lambda _: 2)
    monkeypatch.setattr(dist, "get_rank", lambda _: 0)
    with pytest.raises(CutError, match="rank 1 would have no parameter for its optimizer: the "
                                       "model has too few for 2 stages on 2 ranks"):
        pipe.start()


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_a_batch_of_another_size_is_refused_before_anything_is_sent():
    """A data loader's last batch, for instance: messages between stages have one size."""
    example, target = batch("gpt", 2)
    running = pipeline(made("gpt"), example, 1, loss=loss_of, target=target).start(
        "1f1b", microbatches=2)
    (words,), target = batch("gpt", 4)
    running.step(words, target=target)
    with pytest.raises(ValueError, match=r"argument 0 of the batch is \[3, 12\]: \[4, 12\] is"):
        running.step(words[:3], target=target)
    with pytest.raises(ValueError, match=r"the target is \[3, .*\]: a multiple of the 2 micro"):
        running.step(words, target=target[:3])
    with pytest.raises(ValueError, match="the batch has no target"):
        running.step(words)
    with pytest.raises(ValueError, match="made without a loss"):
        pipeline(made("gpt"), example, 1).start("gpipe", 2).step(words)


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


def test_layers_are_named_by_the_list_that_they_are_in():
    example, _ = batch("t5", 2)
    followed = operator_program.exported(made("t5"), example, {})
    layers = {operator_program.layer_of(node) for node in followed.operators}
    assert {"words", "encoder.0", "encoder.1", "decoder.0", "decoder.1"} <= layers
