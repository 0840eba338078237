"""Training in pages: the same bits in whatever tiers, and torch's optimizer is the oracle."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from harp.angelptm import CapacityError, ConfigError, initialize, page_plan
from harp.angelptm.page_plan import AHEAD, DEVICE, DISK, HOST
from tests.harp.angelptm.models import (
    PAGE,
    RATE,
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
from tests.support.levels import each_once

CAPS = {"device and host": {"device": 14, "host": 160},
        "little host, and disk": {"device": 14, "host": 24},
        "other pages": {"device": 14, "host": 160, "page": 24576},
        "host alone holds most": {"device": 13, "host": 170}}
PRECISIONS = {"fp32": {}, "bf16": {"bf16": {"enabled": True}},
              "fp16": {"fp16": {"enabled": True, "initial_scale_power": 8}},
              "clipping": {"gradient_clipping": 0.3},
              "accumulation": {"gradient_accumulation_steps": 2}}


@pytest.fixture(scope="module")
def resident():
    """Losses and parameters of models that are on the device as a whole."""
    made = {}
    for name, more in PRECISIONS.items():
        with engine_of(seeded(), config(**more)) as engine:
            made[name] = train(engine, batches(8)), parameters_of(engine)
            assert {tier for tier, _ in engine.cache.where} == {DEVICE}
    return made


@pytest.mark.parametrize(("precision", "caps"), each_once(PRECISIONS, CAPS))
def test_losses_have_the_same_bits_in_whatever_tiers(tmp_path, resident, precision, caps):
    more = {**CAPS[caps], **PRECISIONS[precision]}
    if "disk" in caps:
        more["angelptm"] = {"disk_path": str(tmp_path)}
    with engine_of(seeded(), config(**more)) as engine:
        losses, parameters = train(engine, batches(8)), parameters_of(engine)
        tiers = {tier for tier, _ in engine.cache.where}
        assert tiers == ({DEVICE, HOST, DISK} if "disk" in caps else {DEVICE, HOST})
        assert engine._steps.planned >= 3
        assert engine._steps.diverged == 0
    expected = resident[precision]
    assert losses == expected[0]
    assert all(map(torch.equal, parameters, expected[1]))


@pytest.mark.parametrize("ahead", [AHEAD[0], AHEAD[-1]])
def test_losses_have_the_same_bits_however_early_pages_come(monkeypatch, resident, ahead):
    """Plans are compared by rates, so each run could take another distance."""
    monkeypatch.setattr(page_plan, "AHEAD", (ahead,))
    with engine_of(seeded(), config(14, 160)) as engine:
        losses, parameters = train(engine, batches(8)), parameters_of(engine)
        assert {made.ahead for made, _ in engine._steps._plans.values()} == {ahead}
    assert losses == resident["fp32"][0]
    assert all(map(torch.equal, parameters, resident["fp32"][1]))


@pytest.mark.parametrize(("steps", "more"), [
    (50, {}), (20, {"clipping": 0.3}), (20, {"accumulation": 2})],
    ids=["50 steps", "clipping", "accumulation"])
def test_parameters_are_those_of_torch(steps, more):
    names = {"clipping": "gradient_clipping", "accumulation": "gradient_accumulation_steps"}
    model = seeded()
    by_torch(model, batches(steps), **more)
    how = config(14, 160, **{names[name]: value for name, value in more.items()})
    with engine_of(seeded(), how) as engine:
        train(engine, batches(steps))
        for own, other in zip(parameters_of(engine), model.parameters(), strict=True):
            torch.testing.assert_close(own, other.detach(), rtol=0, atol=1e-6)


def test_groups_and_schedules_are_those_of_torch():
    def groups(model):
        return [{"params": model.words.parameters(), "lr": 2e-2, "weight_decay": 0.0},
                {"params": [*model.layers.parameters(), model.scale]}]

    model, other = seeded(), seeded()
    optimizer = torch.optim.AdamW(groups(model), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    given = torch.optim.AdamW(groups(other), lr=1e-3)
    with engine_of(other, config(14, 160), optimizer=given) as engine:
        own = torch.optim.lr_scheduler.StepLR(engine.optimizer, 2)
        for tokens in batches(8):
            by_torch(model, [tokens], optimizer=optimizer)
            schedule.step()
            train(engine, [tokens])
            own.step()
        for mine, theirs in zip(parameters_of(engine), model.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs.detach(), rtol=0, atol=1e-5)


def test_evaluation_between_steps_does_no_harm(resident):
    with engine_of(seeded(), config(14, 160)) as engine:
        losses = []
        for tokens in batches(8):
            losses += train(engine, [tokens])
            engine.eval()
            with torch.no_grad():
                loss_of(engine, tokens)
            engine.train()
    assert losses == resident["fp32"][0]


def test_a_file_that_fails_ends_training_with_a_sentence(tmp_path, monkeypatch):
    how = config(14, 24, angelptm={"disk_path": str(tmp_path)})
    with engine_of(seeded(), how) as engine:
        train(engine, batches(3))
        file, = [int(name.name) for name in Path("/proc/self/fd").iterdir()
                 if str(tmp_path) in str(name.resolve())]
        os.ftruncate(file, PAGE)
        with pytest.raises(OSError, match=r"page \d+ cannot be read: the file ends before it"):
            train(engine, batches(3))


@pytest.mark.parametrize("io", ["auto", "threads"])
def test_an_engine_says_how_it_reads_and_writes_the_disk(tmp_path, io):
    with engine_of(seeded(), config(14, 24, angelptm={
            "disk_path": str(tmp_path), "io": io})) as engine:
        said = engine.describe()
    assert re.search("; the file has [0-9]+ pages of 16384 bytes by (io_uring|threads)", said)
    assert io == "auto" or "by threads" in said
    with engine_of(seeded(), config()) as engine:
        assert "file" not in engine.describe()


def room_of_pages(folder):
    """Give the room that this process holds for pages: by name, of memory and on disk."""
    held = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the list's own descriptor is closed by now
            name = str(link.readlink())
            if "memfd:harp pages" in name or str(folder) in name:
                held.append((name, link.stat().st_size))
    return sorted(held)


def memory_of_process():
    """Give the bytes of memory that this process has for itself alone."""
    words = Path("/proc/self/status").read_text().split()
    return int(words[words.index("RssAnon:") + 1]) << 10


@pytest.mark.parametrize("more", [{}, {"update": "async"}], ids=["now", "late"])
def test_nothing_is_allocated_after_warm_up(tmp_path, more):
    how = config(14, 24, angelptm={"disk_path": str(tmp_path), **more})
    with engine_of(seeded(), how) as engine:
        train(engine, batches(1))
        held = room_of_pages(tmp_path)
        assert sum(size for _, size in held) == PAGE * sum(
            engine.cache.capacities[tier] for tier in (DEVICE, HOST, DISK))
        train(engine, batches(11))
        before = memory_of_process()
        train(engine, batches(40))
        assert memory_of_process() - before < 40 * PAGE  # less than a page a step
        assert room_of_pages(tmp_path) == held
        assert engine._steps.diverged == 0
    assert room_of_pages(tmp_path) == []


def test_tiers_that_are_too_small_are_an_error_before_anything_is_made():
    with pytest.raises(CapacityError, match="do not fit into 14 of the device, 20 of the host"):
        engine_of(seeded(), config(14, 20)).__enter__()


def test_the_caps_hold_all_states_once():
    with engine_of(seeded(Tied), config()) as engine:
        elements = sum(parameter.numel() for parameter in engine.module.parameters())
        pages = engine.layout.pages
    assert pages * PAGE <= 16 * elements * 1.02 + 4 * PAGE


STATE_DICT = """
import torch
from tests.harp.angelptm.models import batches, config, engine_of, parameters_of, seeded, train
with engine_of(seeded(), config(device=14, host=160)) as engine:
    train(engine, batches(3))
    whole = engine.module.state_dict()
    part = engine.module.layers[0].state_dict()
    names = [name for name, _ in engine.module.named_parameters()]
    for name, own in zip(names, parameters_of(engine), strict=True):
        assert torch.equal(whole[name], own), name
    for name, own in part.items():
        assert torch.equal(own, whole[f"layers.0.{name}"]), name
    train(engine, batches(1))
    assert not torch.equal(engine.module.state_dict()["scale"], whole["scale"])
print("whole")
"""


def test_a_state_dict_can_be_read_although_its_pages_are_elsewhere():
    # In a process of its own: what is not on the device is no memory, and reading it a signal.
    done = subprocess.run([sys.executable, "-c", STATE_DICT], capture_output=True, text=True,
                          check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


@pytest.mark.parametrize("model", [torch.nn.ReLU(), seeded().requires_grad_(requires_grad=False)],
                         ids=["no parameters", "none that is trained"])
def test_a_model_without_anything_to_train_is_refused_with_a_sentence(model):
    with pytest.raises(ConfigError, match="no parameter is trained"):
        initialize(model=model, config=config())


def test_a_sparse_gradient_is_refused_with_a_sentence():
    with engine_of(torch.nn.Embedding(8, 4, sparse=True), config()) as engine, pytest.raises(
            ConfigError, match="parameter weight has a sparse gradient, which Adam has no step"):
        engine.backward(engine(torch.arange(3)).sum())


def test_a_group_that_comes_later_is_refused_with_a_sentence():
    with engine_of(seeded(), config()) as engine, pytest.raises(
            ConfigError, match="a group of parameters cannot be added"):
        engine.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})


def test_a_rate_may_be_a_tensor(tmp_path):
    models = [seeded(), seeded()]
    first, second = (torch.optim.AdamW(model.parameters(), torch.tensor(RATE)) for model in models)
    losses = by_torch(models[0], batches(3), optimizer=first)
    with engine_of(models[1], config(), optimizer=second) as engine:
        torch.testing.assert_close(train(engine, batches(3)), losses, rtol=0, atol=1e-6)
        engine.save_checkpoint(tmp_path)
        engine.load_checkpoint(tmp_path)
        assert engine.get_lr() == pytest.approx([RATE])


class BackwardError(Exception):
    """Of a backward pass."""


def failing():
    """Give a model whose backward pass fails in its middle while a list has an item."""
    model, fails = seeded(), []

    def fail(gradient):
        if fails:
            raise BackwardError

    model.layers[1].register_forward_hook(lambda _, __, output: output.register_hook(fail) and None)
    return model, fails


def fail_once(engine, fails, tokens):
    fails.append(1)
    with pytest.raises(BackwardError):
        engine.backward(loss_of(engine, tokens))
    fails.clear()


@pytest.mark.parametrize(("after", "caps"), each_once(
    ["nothing", "zero_grad", "step", "save"], [{}, CAPS["device and host"]]))
def test_a_backward_pass_that_fails_does_not_count(tmp_path, caps, after):
    data = batches(8)
    with engine_of(seeded(), config(**caps, gradient_clipping=9)) as engine:
        losses = train(engine, data)
    model, fails = failing()
    with engine_of(model, config(**caps, gradient_clipping=9)) as engine:
        found = []
        for number, tokens in enumerate(data):
            if number in {0, 4}:
                fail_once(engine, fails, data[0])
                {"nothing": lambda: None, "zero_grad": engine.optimizer.zero_grad,
                 "step": engine.step, "save": lambda: engine.save_checkpoint(tmp_path)}[after]()
            found += train(engine, [tokens])
        assert found == losses
        assert engine.global_steps == len(data)


@pytest.mark.parametrize("clipping", [0, 9])
def test_zero_grad_forgets_earlier_micro_batches(clipping):
    data, accumulated = batches(10), {"gradient_accumulation_steps": 2}
    model = seeded()
    torch_optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    with engine_of(seeded(), config(**accumulated, gradient_clipping=clipping)) as engine:
        for number, tokens in enumerate(data, 1):
            expected, loss = loss_of(model, tokens), loss_of(engine, tokens)
            torch.testing.assert_close(loss, expected, rtol=0, atol=1e-5)
            (expected / 2).backward()
            engine.backward(loss)
            engine.step()
            if number in {3, 7}:
                torch_optimizer.zero_grad()
                engine.optimizer.zero_grad()
            elif number % 2 == 0:
                torch_optimizer.step()
                torch_optimizer.zero_grad()


def test_parameters_can_be_read_within_a_step(resident):
    """The reader moves the pages that the last operator had, and the next one needs."""
    losses = []
    with engine_of(seeded(), config(14, 160)) as engine:
        for tokens in batches(8):
            losses.append(loss_of(engine, tokens))
            parameters_of(engine)
            engine.backward(losses[-1])
            engine.step()
    assert losses == resident["fp32"][0]


def test_a_failure_among_micro_batches_is_refused_until_zero_grad():
    model, fails = failing()
    with engine_of(model, config(gradient_accumulation_steps=2)) as engine:
        first, second = batches(2)
        train(engine, [first])
        fail_once(engine, fails, second)
        for call in (engine.step, lambda: engine.backward(loss_of(engine, second))):
            with pytest.raises(ConfigError, match=r"earlier micro-batches: call zero_grad\(\)"):
                call()
        engine.zero_grad()
        train(engine, [second])
        assert engine.global_steps == 1


@pytest.mark.parametrize("more", [{}, {"angelptm": {"update": "async"}}], ids=["now", "late"])
def test_gradients_that_updates_have_used_are_not_forgotten_but_a_checkpoint_loads(tmp_path, more):
    """From its second step on an engine updates beside the backward pass."""
    data = batches(6)
    model, fails = failing()
    with engine_of(model, config(14, 160, **more)) as engine:
        train(engine, data[:3])
        engine.save_checkpoint(tmp_path, "good")
        saved, losses = parameters_of(engine), train(engine, data[3:])
        fail_once(engine, fails, data[0])
        for call in (engine.zero_grad, engine.step, lambda: engine.save_checkpoint(tmp_path),
                     lambda: engine.backward(loss_of(engine, data[0]))):
            with pytest.raises(ConfigError, match="gradients cannot be forgotten once updates"):
                call()
        engine.load_checkpoint(tmp_path, "good")
        assert all(map(torch.equal, parameters_of(engine), saved))
        found = train(engine, data[3:])
        assert engine.global_steps == len(data)
    assert more or found == losses  # late updates depend on the time that the thread has
