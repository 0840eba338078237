"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import harp.lightcc.horovod.torch as hvd


def test_normalization_and_sparse_gradients_are_those_of_all_ranks(job):
    one, other = job(2, "layers")
    assert one == other
    assert len(one) == 4
    for text, wanted in zip(one, ("optimizer.step() called without optimizer.skip_synchronize()",
                                  "it must be 1 or more", "groups is -1; it must be",
                                  "in one of the groups only"), strict=True):
        assert wanted in text


@pytest.mark.parametrize("how", [{}, {"affine": False}, {"momentum": None},
                                 {"track_running_stats": False}])
@pytest.mark.parametrize("shape", [(8, 3), (4, 3, 5), (2, 3, 4, 4)])
def test_one_rank_normalizes_as_torch_does(shape, how, alone):
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)]
    ours, theirs = hvd.SyncBatchNorm(3, **how), kind(3, **how)
    for _ in range(3):
        given = (torch.randn(shape) * 2 + 100).requires_grad_()
        other = given.detach().clone().requires_grad_()
        results = ours(given), theirs(other)
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
        weights = torch.randn(shape)
        for result in results:
            (result * weights).sum().backward()
        torch.testing.assert_close(given.grad, other.grad, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-4, atol=1e-4)
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(given), theirs(given), rtol=1e-4, atol=1e-4)


def test_an_input_without_channels_is_refused(alone):
    with pytest.raises(ValueError, match=r"expected at least 2D input \(got 1D input\)"):
        hvd.SyncBatchNorm(3)(torch.ones(3))
