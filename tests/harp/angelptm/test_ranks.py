"""Several ranks: the same bits in whatever tiers, page size and stage; torch is the oracle."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from tests.harp.angelptm.models import RATE, batches, config, loss_of, seeded
from tests.harp.lightcc.test_torch import found, start
from tests.support import ROOT
from tests.support.levels import long_except

RANK = Path(__file__).with_name("rank.py")
STEPS = 4
LITTLE = {"device": 16, "host": 200}
MORE = {"clipping": {"gradient_clipping": 0.3}, "bf16": {"bf16": {"enabled": True}},
        "fp16": {"fp16": {"enabled": True, "initial_scale_power": 8}},
        "accumulation": {"gradient_accumulation_steps": 2}}
"""What is compared with itself in other tiers and pages."""


def run(ranks, backend, ways):
    """Train in each way; gives what each rank found."""
    asked = {"backend": backend,
             "ways": {name: {"steps": STEPS, "config": how} for name, how in ways.items()}}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return found(start(json.dumps(asked), ranks, program=RANK, PYTHONPATH=path))


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


@pytest.mark.parametrize(("ranks", "backend"), long_except(
    [(2, "lightcc"), (4, "lightcc"), (2, "gloo")], (2, "lightcc"), (4, "lightcc")))
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


def test_precisions_clipping_and_accumulation_have_the_same_bits_in_whatever_tiers():
    ways = {(name, size): of_stage(3, **caps, **more) for name, more in MORE.items()
            for size, caps in (("little", LITTLE), ("all", {"page": 24576}))}
    each = run(2, "lightcc", {"/".join(way): how for way, how in ways.items()})
    for name in MORE:
        little, whole = (each[0][f"{name}/{size}"] for size in ("little", "all"))
        assert (little["losses"], little["bits"]) == (whole["losses"], whole["bits"])
        assert each[1][f"{name}/all"]["bits"] == whole["bits"]
