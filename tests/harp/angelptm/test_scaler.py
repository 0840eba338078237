"""The scale of the loss: DeepSpeed's rules."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from harp.angelptm.config import Scaling
from harp.angelptm.scaler import Scaler
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


class OfDeepSpeed:
    """The rules of DeepSpeed's DynamicLossScaler (deepspeed/runtime/fp16/loss_scaler.py)."""

    def __init__(self, how):
        self.how, self.scale, self.left = how, how.initial, how.hysteresis
        self.step, self.last = 0, -1

    def hear(self, *, overflow):
        if overflow:
            if self.left == 1:
                self.scale = max(self.scale / 2, self.how.least)
            else:
                self.left -= 1
            self.last = self.step
        elif (self.step - self.last) % self.how.window == 0:
            self.left = self.how.hysteresis
            self.scale *= 2
        self.step += 1


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 5), st.integers(1, 3),
       st.integers(0, 40))
def test_scales_are_those_of_deepspeed_also_from_a_checkpoint(steps, window, hysteresis, saved):
    how = Scaling(initial=8.0, window=window, hysteresis=hysteresis, least=0.5)
    ours, theirs = Scaler(how), OfDeepSpeed(how)
    for number, overflow in enumerate(steps):
        if number == saved:
            kept, ours = ours.state(), Scaler(how)
            ours.restore(kept)
        assert ours.hear(overflow=overflow) == overflow
        theirs.hear(overflow=overflow)
        assert ours.scale == theirs.scale


def test_a_fixed_scale_stays_and_overflows_still_count():
    scaler = Scaler(Scaling(initial=128.0, window=1, hysteresis=1, fixed=True))
    assert [scaler.hear(overflow=overflow) for overflow in (True, False, True)] == [
        True, False, True]
    assert scaler.scale == 128.0
