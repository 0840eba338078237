"""Updates of a step beside the next ones: parameters are at most this many steps behind."""

from __future__ import annotations

from itertools import count

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.harp.angelptm.models import (
    WORDS,
    batches,
    config,
    engine_of,
    parameters_of,
    seeded,
)
from tests.harp.angelptm.test_ranks import of_stage, run
from tests.support.levels import long, long_except

LATE = {"update": "async"}
STEPS = 180


def noisy_loss(model, tokens, generator):
    """Every other word follows from the one before, so no model comes near 0."""
    heard = tokens.flatten()
    said = torch.where(torch.rand(heard.shape, generator=generator) < 0.5, (heard * 7 + 1) % WORDS,
                       torch.randint(0, WORDS, heard.shape, generator=generator))
    return cross_entropy(model(tokens).flatten(0, 1), said)


def train_noisily(seed, steps=STEPS, **more):
    generator, losses = torch.Generator().manual_seed(seed), []
    with engine_of(seeded(seed=seed), config(**more)) as engine:
        for tokens in batches(steps, seed=seed + 10):
            loss = noisy_loss(engine, tokens, generator)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        return losses, engine.staleness


@long
@pytest.mark.parametrize(("seed", "most", "steps"), [
    (0, 2, STEPS), (1, 2, STEPS), (2, 2, STEPS), (0, 1, STEPS), (1, 4, 2 * STEPS)])
def test_the_loss_is_within_a_percent_of_the_synchronous_one(seed, most, steps):
    """The later updates are, the later: a loss that falls by a percent a step is behind by more."""
    late, staleness = train_noisily(seed, steps, angelptm={**LATE, "staleness": most})
    usual, none = train_noisily(seed, steps)
    assert (staleness, none) == (most, 0)
    mean, other = (sum(losses[-20:]) / 20 for losses in (late, usual))
    assert other < 0.9 * usual[0]
    assert mean == pytest.approx(other, rel=0.01)


class Sums(nn.Module):
    """A loss that is linear in the parameters: gradients are the same, however old these are."""

    def __init__(self, skips=lambda: False):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(12))
        self.skips = skips

    def forward(self, x):
        layers = list(self.layers)[::2] if self.skips() else self.layers
        return sum(layer(x).mean() * (number + 1) for number, layer in enumerate(layers))


def parameters_after(steps, skips=(), looks=None, *, changes=True, **more):
    """Train; gives the parameters and the engine. A look at `looks` reads all between two steps.

    Unless the input changes, all gradients of a parameter are the same.
    """
    passes, generator = count(), torch.Generator().manual_seed(3)
    model = seeded(Sums, skips=lambda: next(passes) in skips)
    with engine_of(model, config(**more)) as engine:
        for number in range(steps):
            if not changes:
                generator.manual_seed(3)
            x = torch.randn(5, 64, generator=generator).to(engine.dtype)
            engine.backward(engine(x))
            engine.step()
            if number == looks:
                with torch.no_grad():
                    assert all(one.isfinite().all() for one in model.parameters())
        return parameters_of(engine), engine


WAYS = {
    "all": {}, "little": {"device": 8, "host": 90}, "disk": {"device": 8, "host": 20, "disk": True},
    "bf16": {"device": 8, "host": 90, "bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True, "initial_scale_power": 4}},
    "clipping": {"device": 8, "host": 90, "gradient_clipping": 0.01},
    "accumulation": {"device": 8, "host": 90, "gradient_accumulation_steps": 2},
}


@pytest.mark.parametrize("way", long_except(list(WAYS), "all", "disk", "clipping", "accumulation"))
def test_each_gradient_is_applied_once(tmp_path, way):
    """Then the parameters have the bits of synchronous updates."""
    how = dict(WAYS[way])
    own = {"disk_path": str(tmp_path)} if how.pop("disk", False) else {}
    usual, _ = parameters_after(8, **how, angelptm=own)
    late, engine = parameters_after(8, **how, angelptm={**own, **LATE})
    assert all(map(torch.equal, late, usual))
    assert engine._steps.diverged == 0
    assert engine.staleness == 1


@pytest.mark.parametrize("way", long_except([*list(WAYS)[:4], "accumulation"], "disk", "bf16"))
def test_each_gradient_of_a_sum_is_applied_once(tmp_path, way):
    """The mean of equal gradients is each of them, so parameters have the usual bits."""
    how = dict(WAYS[way])
    own = {"disk_path": str(tmp_path)} if how.pop("disk", False) else {}
    usual, _ = parameters_after(12, changes=False, **how, angelptm=own)
    late, engine = parameters_after(12, changes=False, **how,
                                    angelptm={**own, **LATE, "staleness": 2})
    assert all(map(torch.equal, late, usual))
    assert engine._steps.diverged == 0
    assert engine.staleness == 2


def test_a_look_between_steps_and_a_layer_left_out_lose_none_of_a_sum():
    how = {"device": 8, "host": 90, "changes": False}
    usual, _ = parameters_after(14, **how)
    late, engine = parameters_after(14, looks=8, **how, angelptm={**LATE, "staleness": 4})
    torch.testing.assert_close(late, usual, rtol=0, atol=1e-6)  # a third of three is rounded
    skipped, engine = parameters_after(14, skips=[4, 5, 9], **how,
                                       angelptm={**LATE, "staleness": 2})
    usual, _ = parameters_after(14, skips=[4, 5, 9], **how)
    assert all(map(torch.equal, skipped, usual))
    assert engine._steps.diverged >= 2


@long
def test_late_updates_move_states_once_for_all_gradients_of_a_sum(tmp_path):
    """With moments on disk, each page of them is read and written once in this many steps."""
    moved = []
    for most in (1, 4):
        _, engine = parameters_after(24, changes=False, device=8, host=40, angelptm={
            "disk_path": str(tmp_path), **LATE, "staleness": most})
        assert engine._steps.diverged == 0
        plans = [made for _, known in engine._steps._known.values() for made, _ in known.values()
                 if {tier for tier, _ in made.end} == {0, 1, 2}]
        moved.append(min(sum(move.by_disk for move in made.moves) for made in plans))
    assert moved[1] < 0.5 * moved[0]


def test_a_step_that_leaves_its_plan_and_a_look_between_steps_lose_none():
    usual, _ = parameters_after(14, skips=[4, 5, 9], device=8, host=90)
    late, engine = parameters_after(14, skips=[4, 5, 9], looks=7, device=8, host=90, angelptm=LATE)
    assert all(map(torch.equal, late, usual))
    assert engine._steps.diverged >= 2
    assert engine.staleness == 1


def test_a_checkpoint_has_the_updates_of_all_steps(tmp_path):
    for name, own in (("late", LATE), ("usual", {})):
        with engine_of(seeded(Sums), config(angelptm=own)) as engine:
            for _ in range(4):
                engine.backward(engine(torch.ones(5, 64)))
                engine.step()
            engine.save_checkpoint(tmp_path / name, "saved")
    for file in ("model.safetensors", "optimizer.safetensors"):
        late, usual = ((tmp_path / name / "saved" / file).read_bytes()
                       for name in ("late", "usual"))
        assert late == usual


@pytest.mark.long
@pytest.mark.parametrize("stage", [1, 3])
def test_ranks_update_late_alike(stage):
    ways = {"late": of_stage(stage, device=16, host=200, angelptm=LATE),
            "clipped": of_stage(stage, device=16, host=200, angelptm=LATE, gradient_clipping=0.3,
                                gradient_accumulation_steps=2),
            "rare": of_stage(stage, device=16, host=200, angelptm={**LATE, "staleness": 2}),
            "usual": of_stage(stage, device=16, host=200)}
    each = run(2, "lightcc", {name: {"config": how, "steps": 24} for name, how in ways.items()})
    for name in ways:
        assert len({one[name]["bits"] for one in each}) == 1
        assert each[0][name]["diverged"] == 0
    for one in each:
        assert one["late"]["losses"][-1] < 0.9 * one["late"]["losses"][0]
        assert one["late"]["losses"] != one["usual"]["losses"]
        assert one["rare"]["losses"][-1] < 0.9 * one["rare"]["losses"][0]


@long
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_ranks_apply_each_gradient_of_a_sum_once(tmp_path, stage):
    """At a rate of 0 gradients of a batch stay the same, and moments have the usual bits."""
    still = {"optimizer": {"type": "AdamW", "params": {"lr": 0}}}
    ways = {name: {"config": {**of_stage(stage, device=16, host=200, angelptm=own), **still},
                   "steps": 8, "same": True, "save": str(tmp_path / name), "at": 7}
            for name, own in (("rare", {**LATE, "staleness": 2}), ("usual", {}))}
    each = run(2, "lightcc", ways)
    assert each[0]["rare"]["diverged"] <= 1  # a checkpoint is a look
    rare, usual = ((tmp_path / name / "saved" / "optimizer.safetensors").read_bytes()
                   for name in ways)
    assert rare == usual
