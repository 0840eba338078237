"""torchrun starts all ranks again when one has failed, and has one store for all of them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from tests.support.torch_ranks import PATIENCE_S, answers_of, start, torch

RANK = Path(__file__).with_name("again_rank.py")


def test_a_job_is_joined_again_by_its_ranks_and_by_those_of_a_restart():
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False,
                                       timeout=timedelta(seconds=PATIENCE_S))
    job = {"MASTER_PORT": str(store.port)}
    for rank in start(RANK, "killed", 2, **job):
        rank.communicate()
        assert rank.returncode != 0
    again = start(RANK, "whole", 2, TORCHELASTIC_RESTART_COUNT="1", **job)
    assert answers_of(again) == 2 * [[[4.0] * 3, [4.0] * 3, [2.0] * 3, [2.0] * 3]]
