"""The scale of the loss: DeepSpeed's rules."""

from __future__ import annotations

import torch

from tests.harp.angelptm.models import (
    batches,
    config,
    engine_of,
    parameters_of,
    seeded,
    train,
)


def test_overflowing_gradients_skip_a_step_and_lower_the_scale():
    how = config(14, 160, fp16={"enabled": True, "initial_scale_power": 30, "hysteresis": 1})
    with engine_of(seeded(), how) as engine:
        before = parameters_of(engine)
        train(engine, batches(1))
        assert engine.skipped_steps == 1
        assert engine._scaler.scale == 2.0 ** 29
        assert all(map(torch.equal, before, parameters_of(engine)))
        losses = train(engine, batches(30))
        assert engine.skipped_steps < 30
        assert losses[-1] < losses[0]
