"""A run: the norm of its gradients is that of doubles, and its loss crosses beneath backward."""

from __future__ import annotations

import math

import pytest
import torch

from harp.ttf.amp import Controller, runs
from harp.ttf.amp.runs import norm_of


def parameters(*gradients):
    made = []
    for gradient in gradients:
        part = torch.nn.Parameter(torch.zeros_like(gradient))
        part.grad = gradient
        made.append(part)
    return [*made, torch.nn.Parameter(torch.zeros(3))]  # it has no gradient


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("size", [1e-30, 1e-18, 1e-3, 1.0, 1e18, 1e25])
def test_the_norm_is_that_of_all_gradients(size):
    some = [size * random(40, 30), size * random(7), size * random(30, 40).T]
    exact = torch.cat([each.reshape(-1) for each in some]).double().norm().item()
    assert norm_of(parameters(*some)) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_one_gradient_that_is_not_finite_makes_the_norm_so(bad):
    some = random(40, 30)
    some[3, 4] = bad
    assert not math.isfinite(norm_of(parameters(random(7), some)))


def test_half_precision_counts_too():
    assert norm_of(parameters(torch.full((4,), 2.0, dtype=torch.bfloat16))) == 4.0


class TwoRanks:
    """A torch.distributed whose other rank has the same; it notes what is asked for."""

    def __init__(self):
        self.seen = []

    def is_available(self):
        return True

    is_initialized = is_available

    def get_world_size(self, _):
        return 2

    def all_reduce(self, message, *, group, async_op):
        assert async_op
        assert group is None
        message.mul_(2)
        self.seen.append(f"{message.numel()} numbers leave")
        return self

    def wait(self):
        self.seen.append("they are there")


def test_ranks_decide_by_one_message_which_crosses_beneath_the_backward_pass(monkeypatch):
    network = TwoRanks()
    monkeypatch.setattr(runs, "dist", network)
    model = torch.nn.Linear(4, 1)
    model.weight.register_hook(lambda _: network.seen.append("gradients come"))
    controller = Controller(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.bfloat16)
    x = torch.ones(2, 4)
    for ran in (2, 1, 1):  # the first step is a probe, which runs twice
        network.seen.clear()
        report = controller.step(lambda: model(x).square().mean())
        assert math.isfinite(report.loss)
        assert network.seen == ["1 numbers leave", "gradients come", "they are there"] * ran
