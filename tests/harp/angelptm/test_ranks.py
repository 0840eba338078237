"""Several ranks: the same bits in whatever tiers, page size and stage; torch is the oracle."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.harp.angelptm.models import (
    RATE,
    Tied,
    batches,
    config,
    engine_of,
    loss_of,
    seeded,
    train,
)
from tests.support.levels import long, long_except
from tests.support.torch_ranks import PATIENCE_S, answers_of, start

RANK = Path(__file__).with_name("rank.py")
STEPS = 4
LITTLE = {"device": 16, "host": 200}
MORE = {"clipping": {"gradient_clipping": 0.3}, "bf16": {"bf16": {"enabled": True}},
        "fp16": {"fp16": {"enabled": True, "initial_scale_power": 8}},
        "accumulation": {"gradient_accumulation_steps": 2}}
SIZES = (("little", LITTLE), ("all", {"page": 24576}))
"""Runs that are compared with themselves in other tiers and pages."""


def begin(ranks, backend, ways, **common):
    """Begin to train in each way."""
    asked = {"backend": backend, "ways": {
        name: {"steps": STEPS, **common, **(how if "config" in how else {"config": how})}
        for name, how in ways.items()}}
    return start(RANK, json.dumps(asked), ranks)


def run(ranks, backend, ways, **common):
    """Train in each way; gives what each rank found."""
    return answers_of(begin(ranks, backend, ways, **common))


def of_stage(stage, **more):
    return config(**more, zero_optimization={"stage": stage})


@pytest.fixture(scope="module")
def alone():
    """The losses of one process that trains on the whole batch."""
    model, losses = seeded(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for tokens in batches(STEPS):
        loss = loss_of(model, tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@long
def test_all_ranks_forget_gradients_in_zero_grad():
    clipped = {"gradient_clipping": 0.3, **LITTLE}
    ways = {name: {"config": of_stage(stage, **clipped), "forgets": forgets}
            for stage in (1, 3) for name, forgets in ((f"all {stage}", False), (f"{stage}", True))}
    for one in run(2, "lightcc", ways):
        for stage in "13":
            assert one[stage]["losses"] == one[f"all {stage}"]["losses"]
            assert one[stage]["bits"] == one[f"all {stage}"]["bits"]


@pytest.mark.parametrize(("ranks", "backend"), long_except(
    [(2, "lightcc"), (4, "lightcc"), (2, "gloo")], (2, "lightcc")))
def test_all_stages_train_as_torch_does(tmp_path, alone, ranks, backend):
    ways = {"torch": "torch", "stage 1": of_stage(1, **LITTLE), "stage 2": of_stage(2, **LITTLE),
            "stage 3": of_stage(3, device=16, host=110, page=24576), "resident": of_stage(3),
            "disk": of_stage(3, device=13, host=24, angelptm={"disk_path": str(tmp_path)})}
    each = run(ranks, backend, ways)
    for name in ways:
        assert len({one[name]["bits"] for one in each}) == 1
        assert max(one[name]["error"] for one in each) <= 1e-6
        means = [sum(losses) / ranks
                 for losses in zip(*(one[name]["losses"] for one in each), strict=True)]
        assert means == pytest.approx(alone, rel=0, abs=1e-6)
        if name != "torch":
            assert each[0][name]["planned"] == STEPS - 1
            assert each[0][name]["diverged"] == 0
            assert each[0][name]["bits"] == each[0]["resident"]["bits"]
    assert each[0]["disk"]["tiers"] == [0, 1, 2, 3]


@long
@pytest.mark.parametrize("ranks", [2, 4])
def test_parameters_after_fifty_steps_are_those_of_torch(ranks):
    each = run(ranks, "lightcc", {"torch": "torch", "pages": of_stage(3, **LITTLE)}, steps=50)
    assert max(one["pages"]["error"] for one in each) <= 1e-6


@long
def test_precisions_clipping_and_accumulation_have_the_same_bits_in_whatever_tiers():
    ways = {(name, size): of_stage(3, **caps, **more) for name, more in MORE.items()
            for size, caps in SIZES}
    each = run(2, "lightcc", {"/".join(way): how for way, how in ways.items()})
    for name in MORE:
        little, whole = (each[0][f"{name}/{size}"] for size in ("little", "all"))
        assert (little["losses"], little["bits"]) == (whole["losses"], whole["bits"])
        assert each[1][f"{name}/all"]["bits"] == whole["bits"]


@long
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_branch_that_all_ranks_take_now_and_then_does_no_harm(stage):
    """With two micro-batches; one may have gradients that the other has not."""
    each = run(2, "lightcc", {
        size: {"config": of_stage(stage, **caps, gradient_accumulation_steps=2), "steps": 14,
               "branch": [3, 6, 9, 10]} for size, caps in SIZES})
    assert each[0]["little"]["diverged"] >= 2
    assert len({(one[size]["bits"]) for one in each for size, _ in SIZES}) == 1
    assert each[0]["little"]["losses"] == each[0]["all"]["losses"]


@long
def test_a_checkpoint_of_two_ranks_loads_at_any_count(tmp_path):
    two, four, one = (tmp_path / name for name in ("two", "four", "one"))
    bf16 = MORE["bf16"]
    first, = run(2, "lightcc", {"save": {
        "config": of_stage(3, **LITTLE, **bf16), "save": str(two), "at": 2}})[:1]
    again, = run(2, "lightcc", {"load": of_stage(2, page=24576, **bf16)}, load=str(two))[:1]
    assert again["load"]["losses"] == first["save"]["losses"][2:]
    assert again["load"]["bits"] == first["save"]["bits"]
    run(4, "lightcc", {"load": of_stage(1, **bf16)}, load=str(two), save=str(four))
    with engine_of(seeded(seed=5), config(14, 160, **bf16)) as engine:
        engine.load_checkpoint(four)
        assert engine.global_steps == 2
        engine.save_checkpoint(one, "saved")
    for name in ("model.safetensors", "optimizer.safetensors"):
        files = [(folder / "saved" / name).read_bytes() for folder in (two, four, one)]
        assert files[0] == files[1] == files[2]
    plain = Tied()
    plain.load_state_dict(load_file(two / "saved" / "model.safetensors"))
    for name, own in torch.load(two / "pytorch_model.bin").items():
        assert torch.equal(own, plain.state_dict()[name].bfloat16()), name


def test_ranks_keep_buffers_of_their_own_until_they_load_the_first_ones(tmp_path):
    """As DeepSpeed's ranks do."""
    (first, loaded), (second, loaded_too) = answers_of(
        start(RANK.with_name("buffers_rank.py"), str(tmp_path), 2))
    assert first != second
    assert loaded == loaded_too == first


def test_a_rank_that_is_killed_while_saving_leaves_the_last_checkpoint(tmp_path):
    ranks = begin(2, "lightcc", {"save": {
        "config": of_stage(3, **LITTLE), "save": str(tmp_path), "for_ever": True}})
    for rank in ranks:
        assert rank.stdout.readline() == "saved\n"
    ranks[1].kill()
    ranks[1].communicate()
    _, error = ranks[0].communicate(timeout=PATIENCE_S)
    assert ranks[0].returncode == 1
    assert re.search("RankError: .*rank 1 is gone", error)  # a call may name itself first
    with engine_of(seeded(seed=5), config(14, 160)) as engine:
        engine.load_checkpoint(tmp_path)
        assert engine.global_steps >= 1
        train(engine, batches(1))
