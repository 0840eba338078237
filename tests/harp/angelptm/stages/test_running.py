"""A rank's stages under a schedule: the gradients of the model that is not cut."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch.distributed as dist

from harp.angelptm import pipeline
from tests.harp.angelptm.stages.models import batch, loss_of, made
from tests.support.levels import long_except
from tests.support.torch_ranks import answers_of, start

RANK, KILLED_RANK = (Path(__file__).with_name(name) for name in (
    "stage_rank.py", "killed_rank.py"))

CASES = [
    (2, "lightcc", [("gpt", "operators", 2, "1f1b", 4),
                    ("rotary", "operators", 4, "interleaved", 4)]),
    (2, "lightcc", [("t5", "operators", 2, "gpipe", 3),
                    ("choosing", "modules", 4, "interleaved", 2),
                 ("t5", "layers", 4, "interleaved", 4)]),  # two stages of a rank share words
    (4, "gloo", [("t5", "operators", 4, "1f1b", 6), ("rotary", "operators", 4, "gpipe", 4),
                 ("gpt", "operators", 8, "interleaved", 8), ("gpt", "layers", 4, "1f1b", 4)]),
    (4, "lightcc", [("t5", "operators", 8, "interleaved", 4)]),
]
"""Ranks, backend; model, where cuts may be, stages, schedule, microbatches."""


@pytest.mark.parametrize(("ranks", "backend", "cases"), long_except(CASES, CASES[0]))
def test_ranks_have_the_gradients_of_the_whole_model(ranks, backend, cases):
    answers = answers_of(start(RANK, json.dumps(cases), ranks, BACKEND=backend))
    for case, found in zip(cases, zip(*answers, strict=True), strict=True):
        assert all(one["gaps"] == found[0]["gaps"] for one in found)
        names = {each for each, _ in made(case[0]).named_parameters()}
        assert {each for one in found for each in one["own"]} == names


KILLED = [(1, "exchange"), (2, "exchange"), (0, "forward"), (2, "backward"), (1, "before")]
"""The rank that is killed, and what it does then; ranks 0 and 2 exchange tied gradients."""


@pytest.mark.parametrize(("victim", "when"), long_except(KILLED, *KILLED[:2]))
def test_all_ranks_name_the_one_that_is_killed(victim, when):
    ranks = start(KILLED_RANK, [str(victim), when], 3, BACKEND="lightcc")
    for number, rank in enumerate(ranks):
        out, error = rank.communicate()
        if number == victim:
            assert rank.returncode == -signal.SIGKILL, error
        else:
            kind, sentence = json.loads(out.splitlines()[-1])
            assert kind == "GroupError"
            assert f"rank {victim} is gone" in sentence


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_a_batch_of_another_size_is_refused_before_anything_is_sent():
    """A data loader's last batch, for instance: messages between stages have one size."""
    example, target = batch("gpt", 2)
    running = pipeline(made("gpt"), example, 1, loss=loss_of, target=target).start(
        "1f1b", microbatches=2)
    (words,), target = batch("gpt", 4)
    running.step(words, target=target)
    with pytest.raises(ValueError, match=r"argument 0 of the batch is \[3, 12\]: \[4, 12\] is"):
        running.step(words[:3], target=target)
    with pytest.raises(ValueError, match=r"the target is \[3, .*\]: a multiple of the 2 micro"):
        running.step(words, target=target[:3])
    with pytest.raises(ValueError, match="the batch has no target"):
        running.step(words)
    with pytest.raises(ValueError, match="made without a loss"):
        pipeline(made("gpt"), example, 1).start("gpipe", 2).step(words)
