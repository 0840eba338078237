"""Tensors on an accelerator, over LightCC: one that is made here, by torch's own interfaces.

Its streams do everything as late as they may (tests/support/late_accelerator.cpp).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from tests.support import ROOT

pytest.importorskip("torch")

RANKS = 2
PATIENCE_S = 300
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
def test_on_an_accelerator(check):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # Gradients that are ready in one cycle share a top-k: what it takes depends on time.
    light = {} if check == OPTIMIZER else LIGHT
    ranks = [subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.harp.lightcc.accelerator_rank", check],
        stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, **light, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1",
             "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(RANKS)})
        for rank in range(RANKS)]
    said = [rank.communicate(timeout=PATIENCE_S)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * RANKS, said[0][-3000:] + said[1][-3000:]
