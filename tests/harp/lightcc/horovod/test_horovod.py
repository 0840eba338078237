"""Horovod's API: scripts of several ranks, started by ``harp run``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harp.lightcc.horovod.horovod_jobs import answers, run
from tests.support.levels import long, long_except
from tests.support.torch_ranks import PATIENCE_S, answers_of, start

pytest.importorskip("torch")

RANK = Path(__file__).with_name("horovod_rank.py")
NOTICED_S = 180
"""A tenth of the time after which torch gives up: a dead rank was noticed, not waited for."""


@pytest.mark.parametrize(("ranks", "port"), long_except([(2, "udp"), (3, "auto")], (2, "udp")))
def test_collectives_are_right_and_names_may_come_in_any_order(ranks, port, tmp_path):
    timeline = tmp_path / "timeline.json"
    assert answers(run(ranks, "collectives", HARP_PORT=port,
                       HOROVOD_TIMELINE=str(timeline))) == ["right"] * ranks
    names = {event.get("name") for event in json.loads(timeline.read_text())}
    assert {"NEGOTIATE_ALLREDUCE", "NEGOTIATE_ALLTOALL", "ALLGATHER", "BROADCAST"} <= names


@long
def test_a_timeline_that_cannot_be_written_is_named():
    done = subprocess.run([sys.executable, "-c", "import harp.lightcc.horovod.torch as h; "
                           "h.init()"],
                          env={**os.environ, "RANK": "0", "WORLD_SIZE": "1",
                               "HOROVOD_TIMELINE": "/nope/x.json"},
                          capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.stderr.endswith("ValueError: HOROVOD_TIMELINE /nope/x.json cannot be written: "
                                "No such file or directory\n")


@pytest.mark.parametrize(("ranks", "fused"), long_except(
    [(1, True), (2, False), (2, True), (3, True)], (2, True)))
def test_tensors_of_a_group_are_gathered_and_scattered_together(job, ranks, fused):
    assert job(ranks, "grouped", HOROVOD_FUSION_THRESHOLD=str(fused << 20)) == ["right"] * ranks


def test_a_group_that_does_not_go_together_fails_whole_at_all_ranks(job):
    first, *others = job(3, "group_mistakes")
    assert "grouped_allgather.a.1: rank 0 calls allgather of 2x1 float32" in first[0]
    assert "grouped_reducescatter.b.0: rank 0 calls reducescatter of 2 float32, avg" in first[1]
    assert "in a group of 2, rank 1 calls allreduce of 2 float32, avg, in a group of 3" in first[2]
    assert "in a group of 1" in first[3]
    assert others == [first, first]


@long
def test_autotune_begins_with_what_the_variables_say(tmp_path):
    log = tmp_path / "log.csv"
    answers(run(2, "sparse", HOROVOD_AUTOTUNE="1", HOROVOD_AUTOTUNE_LOG=str(log),
                HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE="1", HOROVOD_AUTOTUNE_WARMUP_SAMPLES="0",
                HOROVOD_FUSION_THRESHOLD="4096", HOROVOD_CYCLE_TIME="2",
                LIGHT_TOPK_ALLREDUCE="1", LIGHT_TOPK_THRESHOLD="100"))
    named, first, *_ = log.read_text().splitlines()
    assert named == "threshold_bytes,cycle_s,two_d,topk_threshold_bytes,topk_fp16,score_bytes_per_s"
    assert first.startswith("4096,0.002,False,100,")


def test_mistakes_are_one_sentence_at_all_ranks_and_the_group_lives_on(job):
    first, *others = job(3, "mistakes")
    assert "rank 0 calls allreduce of 2 float32, avg, rank 1 calls allreduce of 3" in first[0]
    assert "float64" in first[1]
    assert "root 0, rank 1" in first[2]
    assert "allreduce.twice is under way" in first.pop(3)
    assert "Adasum is not supported; allowed are Average" in first[3]
    assert "bool have no reduction 'avg'" in first[4]
    assert "a tensor on meta: collectives of LightCC take tensors on the CPU" in first[5]
    assert others == [first, first]


@long
def test_sets_of_ranks_work_at_once_and_who_has_no_data_joins(job):
    assert job(3, "sets") == [[2, 3.0]] * 3


def test_ranks_leave_and_come_again(job):
    assert job(3, "again") == ["right"] * 3


def test_a_dead_rank_is_named_at_every_other_rank(tmp_path):
    *others, last = start(RANK, "killed", 3, HARP_STORE=f"file:{tmp_path / 'store'}")
    answers = answers_of(others)
    last.communicate()
    assert last.returncode == 9
    for one in answers:
        assert "rank 2 is gone" in one["error"]
        assert one["seconds"] < NOTICED_S
