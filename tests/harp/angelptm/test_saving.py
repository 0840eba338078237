"""Saved models: bit-equal under other caps, plain state_dicts, and whole or refused."""

from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from harp.tensor_files import CheckpointError
from tests.harp.angelptm.models import (
    RATE,
    Tied,
    batches,
    config,
    engine_of,
    parameters_of,
    seeded,
    train,
)


@pytest.mark.parametrize("more", [{}, {"bf16": {"enabled": True}},
                                  {"fp16": {"enabled": True, "initial_scale_power": 8}}],
                         ids=["fp32", "bf16", "fp16"])
def test_training_goes_on_with_the_same_bits_under_other_caps(tmp_path, more):
    data = batches(6)
    with engine_of(seeded(), config(14, 160, **more)) as engine:
        train(engine, data[:3])
        engine.save_checkpoint(tmp_path, client_state={"epoch": 7})
        expected = train(engine, data[3:]), parameters_of(engine)
    with engine_of(seeded(seed=5), config(page=24576, **more)) as engine:
        folder, added = engine.load_checkpoint(tmp_path)
        assert folder.endswith("global_step3")
        assert added == {"epoch": 7}
        assert train(engine, data[3:]) == expected[0]
        assert all(map(torch.equal, parameters_of(engine), expected[1]))


@pytest.mark.parametrize("more", [{}, {"bf16": {"enabled": True}}], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("how", "steps"), [({"load_module_only": True}, 0),
                                            ({"load_optimizer_states": False}, 3)])
def test_a_model_is_loaded_without_its_optimizer(tmp_path, more, how, steps):
    """Training then begins as in a new engine with these parameters."""
    data = batches(4)
    with engine_of(seeded(), config(14, 160, **more)) as engine:
        train(engine, data[:3])
        engine.save_checkpoint(tmp_path, "tag")
    begun = seeded()
    begun.load_state_dict(load_file(tmp_path / "tag" / "model.safetensors"))
    with engine_of(begun, config(**more)) as engine:
        expected = train(engine, data), parameters_of(engine)
    (tmp_path / "tag" / "optimizer.safetensors").unlink()
    with engine_of(seeded(seed=5), config(14, 160, **more)) as engine:
        engine.optimizer.param_groups[0]["lr"] = RATE
        engine.load_checkpoint(tmp_path, "tag", **how)
        assert engine.global_steps == steps
        assert train(engine, data) == expected[0]
        assert all(map(torch.equal, parameters_of(engine), expected[1]))


@pytest.mark.parametrize("more", [{}, {"bf16": {"enabled": True}}], ids=["fp32", "bf16"])
def test_a_model_is_saved_as_torch_saves_it(tmp_path, more):
    """As DeepSpeed's save_16bit_model: in the precision of training, for torch.load alone."""
    with engine_of(seeded(), config(14, 160, **more)) as engine:
        train(engine, batches(2))
        assert engine.save_16bit_model(tmp_path / "new")
        found = torch.load(tmp_path / "new" / "pytorch_model.bin")
        own = engine.module.state_dict()
        assert found.keys() == own.keys()
        for name, one in own.items():
            assert found[name].dtype == engine.dtype
            assert torch.equal(found[name], one), name
        (tmp_path / "file").touch()
        with pytest.raises(CheckpointError, match=r"file/model\.bin cannot be written: "):
            engine.save_16bit_model(tmp_path / "file", "model.bin")
        assert [one.name for one in (tmp_path / "new").iterdir()] == ["pytorch_model.bin"]


class Headed(nn.Module):
    """A body that many tasks have, and a head."""

    def __init__(self, classes, head="head"):
        super().__init__()
        self.body, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.add_module(head, nn.Linear(8, classes))

    def forward(self, given):
        return list(self.children())[-1](self.norm(self.body(given)))


def train_headed(engine, classes):
    torch.manual_seed(3)
    for _ in range(3):
        given, wanted = torch.randn(16, 8, dtype=engine.dtype), torch.randint(classes, (16,))
        engine.backward(nn.functional.cross_entropy(engine(given).float(), wanted))
        engine.step()


def body_of(engine):
    return {name: one for name, one in engine.module.state_dict().items()
            if name.startswith(("body", "norm"))}


PRETRAINED = [({"load_module_strict": False}, Headed(5, "other")),
              ({"custom_load_fn": lambda src, dst: dst.load_state_dict(
                  {name: one for name, one in src.items() if not name.startswith("head")},
                  strict=False), "load_module_only": True}, Headed(5))]


@pytest.mark.parametrize("more", [{}, {"bf16": {"enabled": True}}], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("how", "model"), PRETRAINED, ids=["not strict", "custom"])
def test_a_model_with_another_head_has_the_body_of_a_checkpoint(tmp_path, more, how, model):
    with engine_of(seeded(lambda: Headed(3)), config(**more)) as engine:
        train_headed(engine, 3)
        engine.save_checkpoint(tmp_path)
        expected = body_of(engine)
    with engine_of(copy.deepcopy(model), config(14, 160, **more)) as engine:
        head = [one.clone() for one in list(engine.module.children())[-1].parameters()]
        with pytest.raises(CheckpointError, match=r"head\.|other\."):
            engine.load_checkpoint(tmp_path)
        with pytest.raises(TypeError, match="custom_load_fn is a dict; a function is possible"):
            engine.load_checkpoint(tmp_path, custom_load_fn={})
        engine.load_checkpoint(tmp_path, **how)
        for name, one in body_of(engine).items():
            assert torch.equal(one, expected[name]), name
        assert all(map(torch.equal, list(engine.module.children())[-1].parameters(), head))
        train_headed(engine, 5)
        assert not torch.equal(engine.module.body.weight.detach(), expected["body.weight"])


@pytest.mark.parametrize(("how", "rate"), [({}, 0.25), ({"load_lr_scheduler_states": False}, 1.0),
                                           ({"load_module_only": True}, 1.0)])
def test_a_scheduler_may_stay_as_it_is(tmp_path, how, rate):
    def halving(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** step)

    with engine_of(seeded(), config(), lr_scheduler=halving) as engine:
        train(engine, batches(2))
        engine.save_checkpoint(tmp_path)
    with engine_of(seeded(), config(), lr_scheduler=halving) as engine:
        engine.load_checkpoint(tmp_path, **how)
        assert engine.lr_scheduler.get_last_lr() == [rate * RATE]


def test_the_model_is_a_plain_state_dict(tmp_path):
    with engine_of(seeded(), config(14, 160)) as engine:
        train(engine, batches(3))
        engine.save_checkpoint(tmp_path, "tag")
        expected = parameters_of(engine)
    plain = Tied()
    plain.load_state_dict(load_file(tmp_path / "tag" / "model.safetensors"))
    assert all(map(torch.equal, plain.parameters(), expected))


class Beside(nn.Module):
    """A model with tensors beside its pages: buffers, and weights that are tied and not trained."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.first.weight.requires_grad_(requires_grad=False)

    def forward(self, given):
        return self.second(self.first(self.norm(self.layer(given))))


PRECISIONS = [{}, {"bf16": {"enabled": True}}, {"fp16": {"enabled": True}}]


@pytest.mark.parametrize("saved", PRECISIONS)
@pytest.mark.parametrize("loaded", PRECISIONS)
def test_another_precision_loads_what_lies_beside_pages(tmp_path, saved, loaded):
    with engine_of(seeded(Beside), config(**saved)) as engine:
        engine.module(torch.randn(16, 8, dtype=engine.dtype))  # so that buffers are not round
        engine.save_checkpoint(tmp_path, 5)
        expected = {name: one.float() for name, one in engine.module.state_dict().items()}
    with engine_of(seeded(Beside, seed=1), config(**loaded)) as engine:
        engine.load_checkpoint(tmp_path)
        for name, one in engine.module.state_dict().items():
            torch.testing.assert_close(one.float(), expected[name], rtol=2e-2, atol=1e-3)
    Beside().load_state_dict(load_file(tmp_path / "5" / "model.safetensors"))


def test_a_model_of_another_shape_is_refused(tmp_path):
    with engine_of(nn.Linear(4, 8, bias=False), config()) as engine:
        engine.save_checkpoint(tmp_path)
    with engine_of(nn.Linear(8, 4, bias=False), config()) as engine, pytest.raises(
            CheckpointError, match=r"tensor weight is float32 \[8, 4\], and the model's is float32 "
                                   r"\[4, 8\]"):
        engine.load_checkpoint(tmp_path)


def steps_of(optimizer):
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], 0.5)


def test_a_scheduler_goes_on_where_it_was(tmp_path):
    with engine_of(seeded(), config(), lr_scheduler=steps_of) as engine:
        train(engine, batches(3))
        engine.save_checkpoint(tmp_path)
    with engine_of(seeded(), config(), lr_scheduler=steps_of) as engine:
        engine.load_checkpoint(tmp_path)
        train(engine, batches(1))
        assert engine.get_lr() == [RATE / 4]
        file = tmp_path / "global_step3" / "scheduler.pt"
        file.write_bytes(file.read_bytes()[:-40])
        with pytest.raises(CheckpointError, match=r"scheduler.pt is no state of a scheduler"):
            engine.load_checkpoint(tmp_path)


@pytest.mark.parametrize(("state", "sentence"), [
    ({"random": torch.zeros(1)}, "client_state cannot be saved, for JSON cannot hold it: .*Tensor"),
    ([1], "client_state is a list: an object is possible")])
def test_a_state_that_cannot_be_saved_leaves_the_last_checkpoint(tmp_path, state, sentence):
    with engine_of(seeded(), config()) as engine:
        engine.save_checkpoint(tmp_path, "one")
        with pytest.raises(CheckpointError, match=sentence):
            engine.save_checkpoint(tmp_path, "two", state)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "one"]
        engine.load_checkpoint(tmp_path)
