"""Horovod's API: scripts of several ranks, started by ``harp run``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.levels import long, long_except
from tests.support.torch_ranks import PATIENCE_S, answers_of, start

pytest.importorskip("torch")

RANK = Path(__file__).with_name("horovod_rank.py")
NOTICED_S = 180
"""A tenth of the time after which torch gives up: a dead rank was noticed, not waited for."""


def run(ranks, *command, options=(), **variables):
    return subprocess.run(
        [sys.executable, "-m", "harp.cli.main", "run", "-np", str(ranks), *options,
         sys.executable, "-W", "ignore", *map(str, command)], text=True, capture_output=True,
        check=False, timeout=PATIENCE_S, env={**os.environ, **variables})


def answers(ended):
    """The last line of each rank."""
    assert ended.returncode == 0, ended.stderr
    found = {}
    for line in ended.stdout.splitlines():
        rank, _, text = line.partition("] ")
        found[int(rank[1:])] = text
    return [json.loads(found[rank]) for rank in sorted(found)]


@pytest.fixture
def job(tmp_path):
    """Run a function of horovod_rank.py at ranks that meet by a file; give what each found."""
    def run_ranks(ranks, what, **variables):
        return answers_of(start(RANK, what, ranks, HARP_STORE=f"file:{tmp_path / 'store'}",
                                **variables))
    return run_ranks


@pytest.mark.parametrize(("ranks", "port"), long_except([(2, "udp"), (3, "auto")], (2, "udp")))
def test_collectives_are_right_and_names_may_come_in_any_order(ranks, port, tmp_path):
    timeline = tmp_path / "timeline.json"
    assert answers(run(ranks, RANK, "collectives", HARP_PORT=port,
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


def test_a_distributed_optimizer_trains_as_one_process_with_the_whole_batch_does(job):
    one, other = job(2, "training")
    assert one == other
    assert one["adam"] == [10.0] * 4


@long
def test_an_optimizer_sums_or_averages_over_its_set_of_ranks_and_refuses_adasum(job):
    first, middle, last = job(3, "optimizers")
    assert first == last
    assert middle["set"] != first["set"]  # it is not in the set
    for case in ("sum", "listed", "refused"):
        assert middle[case] == first[case]
    adasum, predivide, handle = first["refused"]
    assert "Adasum is not supported; allowed are Average, Sum" in adasum
    assert "gradient_predivide_factor not supported with op != Average" in predivide
    assert handle == "handle N is not known; each is synchronized once"


def test_normalization_and_sparse_gradients_are_those_of_all_ranks(job):
    one, other = job(2, "layers")
    assert one == other
    assert len(one) == 4
    for text, wanted in zip(one, ("optimizer.step() called without optimizer.skip_synchronize()",
                                  "it must be 1 or more", "groups is -1; it must be",
                                  "in one of the groups only"), strict=True):
        assert wanted in text


@pytest.mark.parametrize("light", long_except([
    {"LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_THRESHOLD": "100", "LIGHT_TOPK_RATIO": "0.2",
     "LIGHT_TOPK_FP16": "1"}, {"LIGHT_BITS": "4", "LIGHT_SMALL_THRESHOLD": "100"}],
    {"LIGHT_BITS": "4", "LIGHT_SMALL_THRESHOLD": "100"}), ids=["top-k", "few bits"])
def test_light_settings_hold_for_the_optimizers_gradients(job, light):
    one, other = job(2, "sparse", **light)
    assert one["weights"] == other["weights"]
    for rank in (one, other):
        before, after = rank["losses"]
        assert after < before / 3
        assert rank["error"] > 0
        assert "allreduce.0.weight" in rank["left"]


@long
def test_autotune_begins_with_what_the_variables_say(tmp_path):
    log = tmp_path / "log.csv"
    answers(run(2, RANK, "sparse", HOROVOD_AUTOTUNE="1", HOROVOD_AUTOTUNE_LOG=str(log),
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


def test_a_dead_rank_is_named_at_every_other_rank(tmp_path):
    *others, last = start(RANK, "killed", 3, HARP_STORE=f"file:{tmp_path / 'store'}")
    answers = answers_of(others)
    last.communicate()
    assert last.returncode == 9
    for one in answers:
        assert "rank 2 is gone" in one["error"]
        assert one["seconds"] < NOTICED_S


@long
def test_the_ranks_that_are_left_go_on_from_the_last_commit():
    ended = run(3, RANK, "elastic", options=["--min-np", "2"])
    one, other = answers(ended)
    assert "rank 1 on localhost ended with SIGKILL; 2 go on" in ended.stderr
    assert (one["number"], other["number"]) == (0, 2)
    assert (one["rank"], other["rank"]) == (0, 1)
    for same in ("size", "log", "resets", "weights", "epoch"):
        assert one[same] == other[same]
    assert one["resets"] == [2]
    # 96 samples are 8 steps of three ranks; the second epoch loses one after 5 of them.
    assert one["log"] == [3] * (8 + 5) + [2] * 5 + [2] * 12


@long
def test_ranks_come_and_go_with_the_slots_that_a_script_finds(tmp_path):
    hosts, script = tmp_path / "hosts", tmp_path / "find"
    hosts.write_text("localhost:2\n")
    script.write_text(f"#!/bin/sh\ncat {hosts}\n")
    script.chmod(0o755)
    one, other = answers(run(2, RANK, "growing", HOSTS=str(hosts), options=[
        "--min-np", "1", "--max-np", "3", "--host-discovery-script", str(script)]))
    assert (one.pop("local"), other.pop("local")) == ([0, 2], [1, 2])
    assert one == other
    assert one["sizes"] == [2, 3, 2]
    assert one["steps"] == one["counted"]  # nothing was lost


@long
def test_a_group_that_is_lost_is_made_anew_by_the_same_processes(job):
    one, other = job(2, "elastic")
    assert one["resets"] == other["resets"] == [2]
    assert one["log"] == other["log"] == [2] * 36
    assert one["weights"] == other["weights"]
