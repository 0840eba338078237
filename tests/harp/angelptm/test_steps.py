"""Steps that do something else than the one before, and what they leave in parameters."""

from __future__ import annotations

from itertools import count

import pytest
import torch

from tests.harp.angelptm.models import (
    Tied,
    batches,
    by_torch,
    config,
    engine_of,
    parameters_of,
    seeded,
    train,
)
from tests.harp.angelptm.test_paged_engine import CAPS


def test_a_branch_that_is_taken_now_and_then_does_no_harm(tmp_path):
    """The layer of the branch has gradients in some steps only, and torch leaves it alone else."""
    models = []
    for _ in range(2):
        numbers = count()
        models.append(seeded(branch=lambda numbers=numbers: next(numbers) in {3, 4, 7}))
    losses = by_torch(models[0], batches(10))
    how = config(14, 24, angelptm={"disk_path": str(tmp_path)})
    with engine_of(models[1], how) as engine:
        torch.testing.assert_close(train(engine, batches(10)), losses, rtol=0, atol=1e-5)
        assert engine._steps.diverged >= 2


class Bounded(Tied):
    """A model that keeps weights small itself, within its forward pass."""

    def __init__(self):
        super().__init__()
        self.words.register_forward_hook(self.bound)

    def bound(self, *_):
        with torch.no_grad():
            self.layers[3][1].weight.clamp_(-0.05, 0.05)


def test_a_parameter_that_the_model_writes_in_its_forward_pass_has_what_was_written():
    """Its pages go and come again before they are used."""
    model = seeded(Bounded)
    losses = by_torch(model, batches(8))
    with engine_of(seeded(Bounded), config(14, 160)) as engine:
        torch.testing.assert_close(train(engine, batches(8)), losses, rtol=0, atol=1e-5)
        for own, other in zip(parameters_of(engine), model.parameters(), strict=True):
            torch.testing.assert_close(own, other.detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("caps", [{}, CAPS["device and host"]], ids=["all", "little"])
def test_no_update_comes_before_the_last_micro_batch(caps):
    """The branch has gradients in the first micro-batch only, and once in the second, too."""
    models = []
    for _ in range(2):
        numbers = count()
        models.append(seeded(branch=lambda numbers=numbers: next(numbers) in {0, 2, 4, 5}))
    losses = by_torch(models[0], batches(8), accumulation=2)
    with engine_of(models[1], config(**caps, gradient_accumulation_steps=2)) as engine:
        torch.testing.assert_close(train(engine, batches(8)), losses, rtol=0, atol=1e-5)
        for own, other in zip(parameters_of(engine), models[0].parameters(), strict=True):
            torch.testing.assert_close(own, other.detach(), rtol=0, atol=1e-5)
