"""An engine from a model and a configuration: torch's groups and optimizers, or one sentence."""

from __future__ import annotations

import pytest
import torch

from harp.angelptm import ConfigError, initialize
from harp.angelptm.moe import MoE
from harp.angelptm.start import check_model
from tests.harp.angelptm.models import (
    RATE,
    batches,
    by_torch,
    config,
    engine_of,
    seeded,
    train,
)
from tests.harp.angelptm.test_schedule import scheduler


def test_a_model_without_values_is_refused_with_a_sentence():
    with torch.device("meta"):
        model = torch.nn.Linear(4, 4)
    with pytest.raises(ConfigError, match=r"tensor weight is on the device meta"):
        initialize(model=model, config=config())


def test_a_script_asks_for_the_rate_and_passes_what_it_does_not_have():
    with engine_of(seeded(), config(), mpu=None) as engine:
        engine.optimizer.param_groups[0]["lr"] = 0.5
        assert engine.get_lr() == [0.5]
    with pytest.raises(ConfigError, match="initialize: mpu has no effect"):
        initialize(model=seeded(), config=config(), mpu=[1])


def test_a_model_that_is_in_pages_is_refused_with_a_sentence():
    with engine_of(seeded(), config()) as engine, pytest.raises(
            ConfigError, match=r"parameter scale is in pages already: destroy\(\) the engine"):
        initialize(model=engine.module, config=config())


def test_groups_may_be_iterators_and_parameters_may_have_names():
    first, second, third = seeded(), seeded(), seeded()
    losses = by_torch(first, batches(3))
    for model, given in ((second, second.named_parameters()), (
            third, [{"params": iter(third.parameters()), "lr": RATE}])):
        with engine_of(model, config(), model_parameters=given) as engine:
            torch.testing.assert_close(train(engine, batches(3)), losses, rtol=0, atol=1e-6)


def test_decoupled_decay_of_torchs_adam_is_decoupled():
    models = [seeded(), seeded()]
    first, second = (torch.optim.Adam(model.parameters(), RATE, weight_decay=0.5,
                                      decoupled_weight_decay=True) for model in models)
    losses = by_torch(models[0], batches(5), optimizer=first)
    with engine_of(models[1], config(), optimizer=second) as engine:
        torch.testing.assert_close(train(engine, batches(5)), losses, rtol=0, atol=1e-6)


def test_two_schedulers_are_refused():
    with pytest.raises(ConfigError, match="a scheduler, and lr_scheduler= was given"), engine_of(
            seeded(), config(**scheduler("WarmupLR")), lr_scheduler=lambda _: None):
        pass


def test_experts_of_several_ranks_are_refused_by_the_engine():
    """Each rank has its own, and the engine would give all of them the first one's."""
    model = torch.nn.Sequential(MoE(8, 4, 2, lambda number: torch.nn.Linear(8, 8)))
    check_model(model, 1)
    with pytest.raises(ConfigError, match="the layer 0 has other experts at each of the 2 ranks"):
        check_model(model, 2)
