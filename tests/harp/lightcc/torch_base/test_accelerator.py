"""Tensors on an accelerator, over LightCC: one that is made here, by torch's own interfaces.

Its streams do everything as late as they may (tests/support/late_accelerator.cpp).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.torch_ranks import PATIENCE_S, start

pytest.importorskip("torch")

RANKS = 2
RANK = Path(__file__).with_name("accelerator_rank.py")
OPTIMIZER = "a_horovod_optimizer_trains_as_on_the_cpu"
LIGHT = {"LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_THRESHOLD": "100", "LIGHT_TOPK_RATIO": "0.1"}


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """Compile it once, before ranks need it at the same time."""
    subprocess.run([sys.executable, "-c", "from tests.support import late_accelerator as one; "
                                          "one.register()"],
                   check=True, cwd=ROOT, timeout=PATIENCE_S, capture_output=True)


@pytest.mark.long
@pytest.mark.parametrize("check", [
    "collectives_follow_kernels_and_come_before_them", "the_own_stream_of_a_caller_is_waited_for",
    "ddp_trains_as_on_the_cpu", "an_outer_step_is_that_of_the_cpu",
    "horovod_calls_give_tensors_where_theirs_are", OPTIMIZER])
def test_on_an_accelerator(check, tmp_path):
    # Gradients that are ready in one cycle share a top-k: what it takes depends on time.
    light = {} if check == OPTIMIZER else LIGHT
    ranks = start(RANK, check, RANKS, HARP_STORE=f"file:{tmp_path / 'store'}", **light)
    said = [rank.communicate()[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * RANKS, said[0][-3000:] + said[1][-3000:]
