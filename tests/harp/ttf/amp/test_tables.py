"""The controller over dynamic embeddings, whose gradients wait in tables: full precision's rows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from harp.ttf.amp import Controller, Policy
from harp.ttf.embedding import Adam, DynamicEmbeddingBag, TableOptimizer

STEPS, LARGE = 12, (4, 7)
"""Steps, and those whose loss overflows in half precision."""


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.bag = DynamicEmbeddingBag(8, mode="sum", optimizer=Adam(lr=0.01), seed=3)
        self.out = nn.Linear(8, 4)

    def forward(self, ids, times):
        return (self.out(self.bag(ids)) * times).square().mean()


def batches(large):
    random = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        yield (torch.randint(0, 30, (16, 3), generator=random) * 10**15,
               1e3 if step in large else 1.0)


def rows(model):
    return {int(head["key"]): torch.tensor(values) for heads, floats in model.bag.table.read()
            for head, values in zip(heads, floats, strict=True)}


def full(large):
    model = Model()
    optimizers = [torch.optim.SGD(model.out.parameters(), lr=0.01), TableOptimizer(model)]
    for ids, times in batches(large):
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(ids, times).backward()
        for optimizer in optimizers:
            optimizer.step()
    return model


def controlled(dtype, large, **policy):
    model = Model()
    optimizers = [torch.optim.SGD(model.out.parameters(), lr=0.01), TableOptimizer(model)]
    controller = Controller(model, optimizers, dtype, policy=Policy(**policy))
    reports = [controller.step(lambda ids=ids, times=times: model(ids, times))
               for ids, times in batches(large)]
    return model, reports, controller


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_run_that_is_not_applied_leaves_no_gradient_in_a_table(dtype):
    """Each step is a probe, and two overflow: all that is applied came from full precision."""
    right, (model, reports, _) = full(LARGE), controlled(dtype, LARGE, probe_every=1,
                                                            strikes=10**6)
    assert not any(report.half for report in reports)
    assert all(report.again for report in reports)
    if dtype == torch.float16:
        assert sum("not finite" in report.again for report in reports) >= len(LARGE)
    ours, theirs = rows(model), rows(right)
    assert ours.keys() == theirs.keys()
    for key, row in theirs.items():
        assert torch.equal(ours[key], row)
    assert torch.equal(model.out.weight, right.out.weight)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_trains_tables_as_full_does(dtype):
    right, (model, reports, controller) = full(()), controlled(dtype, (), tolerance=10.0)
    assert controller.half
    assert sum(report.half for report in reports) >= STEPS // 2
    ours, theirs = rows(model), rows(right)
    assert ours.keys() == theirs.keys()
    for key, row in theirs.items():
        torch.testing.assert_close(ours[key][:8], row[:8], rtol=0.1, atol=0.02)
