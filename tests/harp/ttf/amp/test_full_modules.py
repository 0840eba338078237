"""Modules in full precision, and the search for those that overflow."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from harp.ttf.amp.full_modules import Search, pin


class Doubled(nn.Module):
    """A module with a keyword, whose result has the type of its product."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)

    def forward(self, x, *, times=1.0):
        return self.net(x) * times


def test_a_pinned_module_is_in_full_precision_under_autocast_and_others_are_not():
    model = nn.Sequential(nn.Linear(4, 4), Doubled())
    x = torch.randn(3, 4)
    right = copy.deepcopy(model[1])(x, times=2.0)
    pin(model[1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model[0](x).dtype == torch.bfloat16
        assert model(x).dtype == torch.float32
        assert torch.equal(model[1](x, times=2.0), right)
        assert model[1](x.bfloat16(), times=2.0).dtype == torch.float32
    assert isinstance(model[1], Doubled)
    assert list(model[1].state_dict()) == ["net.weight", "net.bias"]


def test_equal_modules_that_are_pinned_have_one_class():
    first, second = Doubled(), Doubled()
    pin(first)
    pin(second)
    assert type(first) is type(second)
    assert type(first) is not Doubled


class Back(torch.autograd.Function):
    """Gives what it takes; its gradient is multiplied."""

    @staticmethod
    def forward(ctx, x, times):
        ctx.times = times
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.times, None


class Overflows(nn.Module):
    """Gives what is too large where it is asked to."""

    def __init__(self, forward=1.0, backward=1.0):
        super().__init__()
        self.times, self.back = forward, backward
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return Back.apply(x, self.back) * self.weight * self.times


INF = float("inf")


@pytest.mark.parametrize(("forward", "backward"), [(INF, 1.0), (1.0, INF)],
                         ids=["forward", "backward"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_first_module_whose_results_overflow_is_blamed(place, forward, backward):
    model = nn.Sequential(*[nn.Sequential(Overflows()) for _ in range(3)])
    model[place][0] = Overflows(forward, backward)
    search = Search(model)
    with search.watching():
        model(torch.ones(2, 3, requires_grad=True)).sum().backward()
    assert search.blamed == f"{place}.0"


def test_code_between_modules_is_its_callers():
    class Between(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.ReLU(), nn.Linear(3, 3)

        def forward(self, x):
            return self.last(self.first(x) * INF)

    model = nn.Sequential(Between())
    search = Search(model)
    with search.watching():
        model(torch.ones(2, 3))
    assert search.blamed == "0"


def test_minus_infinity_in_a_mask_blames_nobody_and_no_hook_stays():
    class Masked(nn.Module):
        def forward(self, x, mask):
            return torch.softmax(x + mask, -1)

    model = Masked()
    search = Search(model)
    with search.watching():
        model(torch.ones(2, 3), mask=torch.tensor([0.0, -INF, 0.0]))
    assert search.blamed is None
    model(torch.full((2, 3), INF), torch.zeros(3))
    assert search.blamed is None
    assert not model._forward_hooks


def test_a_module_in_a_wrapper_is_blamed_by_the_name_that_it_has_without():
    model = nn.Sequential(nn.ReLU(), Overflows(INF))
    for whole in (model, nn.DataParallel(model)):
        search = Search(whole)
        with search.watching():
            whole(torch.ones(2, 3))
        assert search.blamed == "1"
