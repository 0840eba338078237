"""A script for DeepSpeed runs with its import line changed."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import count

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import harp.angelptm as deepspeed
from harp.angelptm import ConfigError
from harp.angelptm.page_plan import DEVICE, HOST
from tests.harp.angelptm.models import (
    RATE,
    WORDS,
    Tied,
    batches,
    by_torch,
    config,
    engine_of,
    loss_of,
    parameters_of,
    seeded,
    train,
)

SCRIPT = '''
import argparse, json, os, torch
import harp.angelptm as deepspeed

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--steps", type=int, default=6)
args = deepspeed.add_config_arguments(parser).parse_args()
deepspeed.init_distributed(dist_backend="nccl")
assert deepspeed.comm.get_rank() == int(os.environ["LOCAL_RANK"])
device = deepspeed.get_accelerator().device_name(deepspeed.comm.get_rank())
torch.manual_seed(0)
with deepspeed.zero.Init(config_dict_or_path=args.deepspeed_config):
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
engine, optimizer, loader, scheduler = deepspeed.initialize(
    args=args, model=model, model_parameters=model.parameters(), training_data=range(10),
    lr_scheduler=lambda it: torch.optim.lr_scheduler.LambdaLR(it, lambda n: 1 / (1 + n)))
with deepspeed.zero.GatheredParameters(model[2].bias, modifier_rank=0):
    if engine.global_rank == 0:
        model[2].bias.data.fill_(0.5)
x = torch.randn(engine.train_micro_batch_size_per_gpu(), 8).to(device)
for step in range(args.steps * engine.gradient_accumulation_steps()):
    engine.train()
    loss = engine(x).square().mean()
    with engine.no_sync():
        engine.backward(loss)
    engine.step()
engine.eval()
with torch.no_grad():
    assert engine.module(x).square().mean() < loss
engine.save_checkpoint("kept", client_state={"step": step})
assert engine.save_fp16_model("kept")
_, state = engine.load_checkpoint("kept")
print(json.dumps([engine.local_rank, engine.get_lr()[0], engine.get_global_grad_norm(), float(loss),
                  state["step"], engine.train_batch_size(),
                  engine.fp16_enabled() or engine.bfloat16_enabled(), list(x.shape),
                  [batch.tolist() for batch in loader]]))
'''


def test_a_script_as_users_write_it(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "ds.json").write_text(json.dumps({
        "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": 3}, "angelptm": {"device": "cpu"}}))
    options = ["--deepspeed", "--deepspeed_config", "ds.json", "--local_rank", "0"]
    ran = subprocess.run([sys.executable, "train.py", *options], cwd=tmp_path, text=True,
                         capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr
    rank, rate, norm, loss, step, batch, half, shape, loaded = json.loads(
        ran.stdout.splitlines()[-1])
    assert (batch, half, shape) == (8, False, [4, 8])
    assert (rank, step) == (0, 11)
    assert [len(part) for part in loaded] == [4, 4, 2]
    assert sorted(one for part in loaded for one in part) == list(range(10))
    assert rate == pytest.approx(0.01 / 7)
    assert norm > 0
    assert 0 < loss < 0.5


def test_a_script_asks_for_the_device_that_trains():
    accelerator = deepspeed.get_accelerator()
    assert accelerator.is_available()
    accelerator.set_device(0)
    kind = accelerator.device_name()
    assert torch.device(accelerator.device_name(3)) == torch.device(
        kind, None if kind == "cpu" else 3)
    with engine_of(seeded(), {**config(), "angelptm": {}}) as engine:
        assert engine.device.type == kind
    assert accelerator.communication_backend_name() == "lightcc"


def pair():
    """A generator and its discriminator."""
    torch.manual_seed(0)
    return [torch.nn.Sequential(
        torch.nn.Linear(first, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU(),
        torch.nn.Linear(128, last)) for first, last in ((4, 8), (8, 1))]


def train_gan(generator, critic, backward, step):
    """Train as DeepSpeed's example of a GAN: it calls the networks, not their engines."""
    random, losses = torch.Generator().manual_seed(1), []

    def loss_if(real, given):
        target = torch.full((16, 1), float(real))
        losses.append(torch.nn.functional.binary_cross_entropy_with_logits(critic(given), target))
        return losses[-1]
    for _ in range(6):
        critic.zero_grad()
        backward[1](loss_if(True, torch.randn(16, 8, generator=random)))
        fake = generator(torch.randn(16, 4, generator=random))
        backward[1](loss_if(False, fake.detach()))
        step[1]()
        generator.zero_grad()
        backward[0](loss_if(True, fake))
        step[0]()
    return [loss.item() for loss in losses]


def test_a_gan_of_two_engines_is_that_of_torch():
    """The pages of both networks come and go by plans."""
    nets = pair()
    expected = train_gan(*nets, [torch.Tensor.backward] * 2, [
        torch.optim.AdamW(net.parameters(), 1e-3).step for net in nets])
    nets, how = pair(), config(12, 34, page=8192)
    with engine_of(nets[0], how) as first, engine_of(nets[1], how) as second:
        engines = [first, second]
        losses = train_gan(*nets, [one.backward for one in engines], [one.step for one in engines])
        torch.testing.assert_close(losses, expected, rtol=0, atol=1e-5)
        for engine in engines:
            assert {tier for tier, _ in engine.cache.where} == {DEVICE, HOST}
            assert engine._steps.planned >= 5
            # The generator goes through the discriminator from the second step of that one on.
            assert engine._steps.diverged <= 1


def test_a_step_without_gradients_of_its_own_engine_is_refused():
    """They were in another engine's backward pass, where torch would have added them up."""
    first, second = seeded(), torch.nn.Linear(WORDS, WORDS)
    with engine_of(first, config()) as below, engine_of(second, config()) as above:
        def loss():
            return above(below(batches(1)[0])).square().mean()

        above.backward(loss())
        above.step()
        with pytest.raises(ConfigError, match=r"step\(\) has no gradient: another engine's"):
            below.step()
        below.zero_grad()
        below.step()
        assert (above.global_steps, below.global_steps) == (1, 0)
        for engine in (above, below):
            engine.backward(loss())
        for engine in (above, below):
            engine.step()
        assert (above.global_steps, below.global_steps) == (2, 1)


def test_more_backward_passes_than_in_the_step_before_are_refused_once_updates_have_begun():
    [batch] = batches(1)
    with engine_of(seeded(), config()) as engine:
        train(engine, 3 * [batch])
        engine.backward(loss_of(engine, batch))
        with pytest.raises(ConfigError, match="has a gradient after its update: this step has mo"):
            engine.backward(loss_of(engine, batch))
    plain = seeded()
    optimizer = torch.optim.AdamW(plain.parameters(), RATE)
    by_torch(plain, 3 * [batch], optimizer=optimizer)
    with engine_of(seeded(), config(gradient_clipping=1e9)) as engine:
        train(engine, 3 * [batch])
        for _ in range(2):
            loss_of(plain, batch).backward()
            engine.backward(loss_of(engine, batch))
        optimizer.step()
        engine.step()
        for own, other in zip(parameters_of(engine), plain.parameters(), strict=True):
            torch.testing.assert_close(own, other.detach(), rtol=0, atol=1e-6)


def test_a_micro_batch_is_the_last_of_its_step_until_step_is_called():
    with engine_of(seeded(), config(gradient_accumulation_steps=3)) as engine:
        said = []
        for batch in batches(6):
            before = engine.is_gradient_accumulation_boundary()
            engine.backward(loss_of(engine, batch))
            said.append((before, engine.is_gradient_accumulation_boundary()))
            engine.step()
        assert said == 2 * [(False, False), (False, False), (True, True)]


@pytest.mark.parametrize("own", [False, True], ids=["a function", "of torch's own optimizer"])
@pytest.mark.filterwarnings("error:Detected call of `lr_scheduler.step")
def test_the_engine_steps_the_scheduler_that_it_was_given(own):
    def halved(optimizer):
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    model = seeded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3) if own else None
    with engine_of(model, config(gradient_accumulation_steps=2), optimizer=optimizer,
                   lr_scheduler=halved(optimizer) if own else halved) as engine:
        rates = []
        for batch in batches(6):
            engine.backward(loss_of(engine, batch))
            engine.step()
            rates += engine.get_lr()
        assert rates == [1e-3, 5e-4, 5e-4, 2.5e-4, 2.5e-4, 1.25e-4]


def test_a_scheduler_waits_where_an_update_is_skipped():
    def halved(optimizer):
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    how = config(fp16={"enabled": True, "initial_scale_power": 4})
    with engine_of(seeded(), how, lr_scheduler=halved) as engine:
        for factor in (float("inf"), 1.0):
            engine.backward(loss_of(engine, batches(1)[0]) * factor)
            engine.step()
        assert engine.skipped_steps == 1
        assert engine.get_lr() == [5e-4]


@pytest.mark.parametrize("clipping", [0.5, 1e9])
def test_the_norm_of_gradients_is_that_of_torch(clipping):
    [batch] = batches(1)
    plain = seeded()
    loss_of(plain, batch).backward()
    norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), clipping)
    with engine_of(seeded(), config(gradient_clipping=clipping)) as engine:
        assert engine.get_global_grad_norm() is None
        engine.backward(loss_of(engine, batch))
        engine.step()
        assert engine.get_global_grad_norm() == pytest.approx(float(norm), rel=1e-5)


class Twice(torch.nn.Module):
    """A block that one pass calls three times, each as a checkpoint, and one for odd passes."""

    def __init__(self, reentrant=None):
        super().__init__()
        self.net = Tied()
        self.block, self.odd = (torch.nn.Linear(WORDS, WORDS) for _ in range(2))
        self.passes, self.reentrant = count(), reentrant

    def forward(self, tokens):
        hidden = self.net(tokens)
        for _ in range(3):
            hidden = hidden + (self.block(hidden) if self.reentrant is None else
                               checkpoint(self.block, hidden, use_reentrant=self.reentrant))
        return hidden + self.odd(hidden) if next(self.passes) % 2 == 0 else hidden


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_a_gradient_counts_once_whenever_it_comes(reentrant):
    """In one micro-batch of two, or in three parts, as reentrant checkpoints give it."""
    plain, data = seeded(Twice), batches(8)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    with engine_of(seeded(Twice, reentrant=reentrant), config(
            gradient_accumulation_steps=2, gradient_clipping=0.1)) as engine:
        for step in range(4):
            optimizer.zero_grad()
            for batch in data[2 * step:2 * step + 2]:
                (loss_of(plain, batch) / 2).backward()
                engine.backward(loss_of(engine, batch))
                engine.step()
            norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
            optimizer.step()
            assert engine.get_global_grad_norm() == pytest.approx(float(norm), rel=1e-4)


def test_parameters_are_written_where_they_are_gathered():
    model = seeded()
    with engine_of(model, config()):
        with deepspeed.zero.GatheredParameters(list(model.parameters())):
            model.scale.data.fill_(3.0)
        assert float(model.scale) == 3.0
        with deepspeed.zero.GatheredParameters(model.scale, enabled=False):
            assert float(model.scale) == 3.0


def test_one_rank_of_several_must_not_write_alone(monkeypatch):
    model = seeded()
    with engine_of(model, config()):
        monkeypatch.setattr(deepspeed.Engine, "world_size", 2)
        with pytest.raises(ConfigError, match="modifier_rank=0 would write at one rank only"), \
                deepspeed.zero.GatheredParameters(model.scale, modifier_rank=0):
            pass


def test_a_graph_may_be_kept_for_another_backward_pass():
    """As GANs do; the gradients of both passes are of one step."""
    for more in ({}, {"bf16": {"enabled": True}}):
        with engine_of(seeded(), config(gradient_accumulation_steps=2, **more)) as engine:
            loss = loss_of(engine, batches(1)[0])
            engine.backward(loss, retain_graph=True)
            engine.step()
            engine.backward(loss)
            engine.step()
            twice = [one.clone() for one in engine.module.parameters()]
        with engine_of(seeded(), config(**more)) as engine:
            engine.backward(loss_of(engine, batches(1)[0]))
            engine.step()
            assert all(map(torch.equal, engine.module.parameters(), twice))


def test_a_loss_that_is_no_tensor_is_a_sentence():
    with engine_of(seeded(), config()) as engine, pytest.raises(
            TypeError, match="backward: the loss is a float; a tensor is possible"):
        engine.backward(3.0)
