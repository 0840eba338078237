"""A mixture of experts over ranks gives what one place with all experts gives."""

from __future__ import annotations

import copy
import math
import re
from concurrent.futures import Future
from pathlib import Path

import pytest

from harp.angelptm.tokens import Places

pytest.importorskip("torch")

import torch

from harp.angelptm import moe
from harp.angelptm.moe import MoE
from tests.harp.angelptm.models import WIDTH, WORDS, batches, config, engine_of, seeded, train
from tests.support.levels import long_except
from tests.support.torch_ranks import answers_of, start

RANK = Path(__file__).with_name("moe_rank.py")


@pytest.mark.parametrize("ranks", long_except([1, 2, 4], 2))
def test_outputs_and_gradients_are_those_of_the_unsplit_layer(ranks):
    """Of 40 cases: ranks without tokens, all to one expert, any hosts, algorithms, capacities."""
    assert answers_of(start(RANK, "", ranks)) == ["right"] * ranks


class OneRank:
    """A group of one rank that ends its calls at once and records them."""

    host_numbers = (0,)

    def __init__(self, calls):
        self.calls = calls

    def rank(self):
        return 0

    def size(self):
        return 1

    def run_blocks(self, plan, data, out):
        self.calls.append(plan.collective)
        out.copy_(data)
        over = Future()
        over.set_result(None)
        return over


def test_all_chunks_are_sent_before_experts_compute_in_both_passes(monkeypatch):
    calls = []

    class Recorded(torch.nn.Linear):
        def forward(self, x):
            calls.append("expert")
            y = super().forward(x)
            y.register_hook(lambda _: calls.append("expert"))
            return y

    monkeypatch.setattr(moe, "_light_group", lambda _: OneRank(calls))
    monkeypatch.setattr(moe, "all_gather_single",
                        lambda table, given, group: table.copy_(given[None]))
    layer = MoE(8, 1, 1, lambda _: Recorded(8, 8), chunks=3)
    y = layer(torch.randn(9, 8))
    assert calls == ["alltoallv"] * 3 + ["expert", "combine"] * 3
    calls.clear()
    y.sum().backward()
    assert calls == ["alltoallv"] * 3 + ["expert", "combine"] * 3


def expert(_):
    return torch.nn.Identity()


@pytest.mark.parametrize(("how", "sentence"), [
    ({"top_k": 5}, "top_k is 5; allowed is a whole number of 1 or more, up to the 4 experts"),
    ({"top_k": "2"}, "top_k is '2'; allowed is a whole number of 1 or more, up to the 4 experts"),
    ({"chunks": 0}, "chunks is 0; allowed is a whole number of 1 or more"),
    ({"capacity_factor": -1.0}, "capacity_factor is -1.0; allowed is a number of more than 0"),
    ({"capacity_factor": math.inf}, "capacity_factor is inf; allowed is a number of more than 0"),
    ({"way": "once"}, "way is 'once'; did you mean 'once-per-host'? (allowed: direct, ")])
def test_an_impossible_layer_is_refused_in_one_sentence(how, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        MoE(8, 4, how.pop("top_k", 2), expert, **how)


def test_tokens_of_another_kind_are_refused():
    layer = MoE(8, 4, 2, expert)
    with pytest.raises(ValueError, match=re.escape("tokens are of (9,) torch.float32 on cpu")):
        layer(torch.zeros(3, 9))
    with pytest.raises(ValueError, match=r"allowed is \(8,\) torch.float32 or torch.bfloat16 on"):
        layer(torch.zeros(3, 8, dtype=torch.float16))
    with pytest.raises(ValueError, match="6 experts are not as many for each of the 4 ranks"):
        Places(6, (0, 0, 1, 1))


def test_an_expert_that_changes_the_width_is_refused():
    layer = MoE(8, 2, 1, lambda _: torch.nn.Linear(8, 5))
    with pytest.raises(ValueError, match=r"expert 0 gives \[\d, 5\] for \[\d, 8\]; allowed is the"):
        layer(torch.randn(4, 8))


def test_a_layer_that_was_called_can_be_copied():
    layer = MoE(8, 4, 2, lambda _: torch.nn.Linear(8, 8))
    x = torch.randn(4, 8)
    y = layer(x)
    assert torch.equal(copy.deepcopy(layer)(x), y)
    assert layer.balance.requires_grad


def test_second_derivatives_are_refused_and_not_wrong():
    layer = MoE(8, 4, 2, lambda _: torch.nn.Linear(8, 8))
    x = torch.randn(4, 8, requires_grad=True)
    slope, = torch.autograd.grad((layer(x) ** 2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def test_the_loss_of_balance_is_one_where_all_are_used_alike():
    """Fedus, Zoph and Shazeer, arXiv 2101.03961, equation 4, without its factor."""
    layer = MoE(4, 4, 1, expert)
    with torch.no_grad():
        layer.router.weight.copy_(torch.eye(4) * 100)
    layer(torch.eye(4))
    assert layer.balance.item() == pytest.approx(1)
    layer(torch.eye(4)[[0, 0, 0, 0]])
    assert layer.balance.item() == pytest.approx(4)


class Words(torch.nn.Module):
    """Words, a layer of experts, and a tied head."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.moe = MoE(WIDTH, 8, 2, lambda number: torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 128), torch.nn.GELU(), torch.nn.Linear(128, WIDTH)))

    def forward(self, tokens):
        x = self.words(tokens)
        return torch.nn.functional.linear(x + self.moe(x), self.words.weight)


@pytest.mark.parametrize("how", long_except([{}, {"bf16": {"enabled": True}}], {}),
                         ids=["fp32", "bf16"])
def test_experts_train_in_pages_beyond_the_cap_of_the_device(how):
    losses = []
    for caps in ({}, {"device": 14, "host": 160}):
        with engine_of(seeded(Words), config(**caps, **how)) as engine:
            losses.append(train(engine, batches(6)))
            assert engine._steps.diverged == 0
            assert len(engine.cache.where) > 80
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]
