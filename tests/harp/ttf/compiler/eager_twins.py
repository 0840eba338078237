"""Modules with twins that stay eager, and what tests of compiled ones count."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import harp.ttf  # noqa: E402


class Graphs:
    """A backend that counts what it compiles, and can make dynamic code look slow."""

    def __init__(self):
        self.static = self.dynamic = 0

    def __call__(self, graph, inputs, **_):
        symbolic = any(isinstance(value, torch.SymInt) for value in inputs)
        self.dynamic += symbolic
        self.static += not symbolic
        return graph.forward


class Rows(nn.Module):
    """Each row by itself, with a counter and a float argument."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        self.calls = 0

    def forward(self, x, scale=1.0):
        self.calls += 1
        return self.net(x).squeeze(-1) * scale + self.calls


class Mean(nn.Module):
    """The mean over rows: padding changes it, unless there is a mask."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 1)

    def forward(self, x, mask=None):
        each = self.net(x).squeeze(-1)
        if mask is None:
            return each.mean()
        return torch.where(mask, each, 0).sum() / mask.sum()


def twins(kind):
    torch.manual_seed(0)
    module = kind()
    return module, copy.deepcopy(module)


def compare(compiled, eager, sizes, **arguments):
    """Call both at sizes, and hold results and gradients of one against the other's."""
    for size in sizes:
        x = torch.randn(size, 8)
        found, right = compiled(x, **arguments), eager(x, **arguments)
        torch.testing.assert_close(found, right)
        found.sum().backward()
        right.sum().backward()
        for one, other in zip(compiled.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
            one.grad = other.grad = None


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self):
        self.now_s = 0.0

    def perf_counter(self):
        return self.now_s

    def move(self, seconds):
        self.now_s += seconds


def settled(module, graphs, **settings):
    return harp.ttf.compile(module, backend=graphs, learn=6, aside=False, **settings)


def step_both(weights, ours, theirs, schedules):
    """Make a step of a compiled optimizer and of its twin, by the weights' own values."""
    for weight in weights:
        weight.grad = weight.detach().clone()
    ours()
    theirs.step()
    for schedule in schedules:
        schedule.step()


def twin_optimizers():
    """Make two optimizers that follow schedules of their own."""
    weights = [nn.Parameter(torch.ones(4)) for _ in range(2)]
    optimizers = [torch.optim.AdamW([weight], lr=0.1) for weight in weights]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in optimizers]
    return weights, optimizers, schedules
