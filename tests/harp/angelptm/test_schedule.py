"""DeepSpeed's schedules of the learning rate, which a configuration names."""

from __future__ import annotations

from math import cos, log, pi

import pytest
import torch

from harp.angelptm import ConfigError
from harp.angelptm.config import read_config
from tests.harp.angelptm.models import batches, config, engine_of, loss_of, seeded, train

LINEAR = {"warmup_num_steps": 4, "warmup_type": "linear"}


def scheduler(kind, **params):
    return {"scheduler": {"type": kind, "params": params}}


@pytest.mark.parametrize(("keys", "rates"), [
    (scheduler("WarmupLR", warmup_min_lr=0.1, warmup_max_lr=0.5, **LINEAR),
     [0.1, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5]),
    (scheduler("WarmupLR", warmup_max_lr=1.0, warmup_num_steps=4),
     [0.0, 0.0, 0.5, log(3) / log(4), 1.0, 1.0]),
    (scheduler("WarmupDecayLR", warmup_max_lr=1.0, total_num_steps=8, **LINEAR),
     [0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]),
    (scheduler("WarmupCosineLR", total_num_steps=8, cos_min_ratio=0.1, warmup_min_ratio=0.5,
               **LINEAR),
     [0.0, 1.0, 1.25, 1.5, 1.75,
      *(2 * (0.1 + 0.9 * (1 + cos(pi * part / 4)) / 2) for part in (1, 2, 3, 4)), 0.2])])
def test_rates_are_those_of_deepspeed(keys, rates):
    schedule = read_config(keys).schedule
    most = 2.0 if schedule.most is None else schedule.most
    assert [schedule.rate(most, step - 1) for step in range(len(rates))] == pytest.approx(rates)


def test_a_training_has_the_rates_of_its_schedule_also_after_a_checkpoint(tmp_path):
    how = config(**scheduler("WarmupLR", warmup_max_lr=0.01, **LINEAR))
    plain, rates = seeded(), [0.0, 0.0, 0.0025, 0.005, 0.0075, 0.01]
    optimizer = torch.optim.AdamW(plain.parameters())
    data, losses = batches(6), []
    for rate, batch in zip(rates, data, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        loss = loss_of(plain, batch)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    with engine_of(seeded(), how) as engine:
        assert train(engine, data[:3]) == pytest.approx(losses[:3], abs=1e-5)
        engine.save_checkpoint(tmp_path)
    with engine_of(seeded(seed=1), how) as engine:
        engine.load_checkpoint(tmp_path)
        assert engine.get_lr() == [0.005]
        assert train(engine, data[3:]) == pytest.approx(losses[3:], abs=1e-5)


@pytest.mark.parametrize(("keys", "says"), [
    (scheduler("OneCycle"), "scheduler.type is .*WarmupLR, WarmupDecayLR, WarmupCosineLR"),
    (scheduler("WarmupDecayLR"), "total_num_steps is missing in scheduler.params"),
    (scheduler("WarmupLR", total_num_steps=8), "params.total_num_steps: WarmupLR has no such key"),
    (scheduler("WarmupLR", warmup_num_steps="auto"), 'warmup_num_steps is "auto": a whole number'),
    (scheduler("WarmupLR", last_batch_iteration=7), "last_batch_iteration is 7: -1")])
def test_a_schedule_that_cannot_be_is_one_sentence(keys, says):
    with pytest.raises(ConfigError, match=says):
        read_config(keys)
