"""The norm of gradients is that of doubles, however large or small they are."""

from __future__ import annotations

import math

import pytest
import torch

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
