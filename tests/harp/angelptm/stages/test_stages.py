"""Pipelines of a model: what is asked for is there, or one sentence says why not."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from harp.angelptm import CapacityError, CutError, Memory, pipeline
from tests.harp.angelptm.stages.models import batch, made


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
