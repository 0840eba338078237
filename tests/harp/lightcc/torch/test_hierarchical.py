"""The hook over any backend: hosts divide a bucket, and send its parts to one another."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.levels import long, long_except
from tests.support.torch_ranks import PATIENCE_S, answers_of, start

torch = pytest.importorskip("torch")


RANK = Path(__file__).with_name("rank.py")


@pytest.mark.parametrize(("hosts", "within"), long_except(
    [("0011", "reduce_scatter"), ("0011", "all_reduce"), ("0101", ""), ("0123", ""), ("0000", ""),
     ("0011", "unsorted")], ("0011", "reduce_scatter")))
def test_the_hook_over_gloo_trains_as_plain_ddp_does(hosts, within):
    answers = answers_of(start(RANK, "any_backend", 4, BACKEND="gloo", HOSTS=hosts, WITHIN=within))
    assert all(answer == answers[0] for answer in answers)  # bit for bit


@pytest.mark.parametrize("fp16", long_except(["0", "1"], "1"))
def test_the_hook_over_gloo_loses_no_gradients_between_hosts(fp16):
    answers = answers_of(start(
        RANK, "any_backend_sparse", 4, BACKEND="gloo", LIGHT_TOPK_ALLREDUCE="1",
        LIGHT_TOPK_THRESHOLD="100", LIGHT_TOPK_RATIO="0.05", LIGHT_TOPK_FP16=fp16))
    for answer in answers:
        assert answer["came"] == answers[0]["came"]
        assert answer["left"] > 0
        assert 0 < answer["sent"] <= 0.05 * 1001 * 2 + 4


@long
def test_the_hook_over_gloo_loses_nothing_in_few_bits_between_hosts():
    answers = answers_of(start(RANK, "any_backend_sparse", 4, BACKEND="gloo", LIGHT_BITS="8",
                               LIGHT_SMALL_THRESHOLD="100"))
    for answer in answers:
        assert answer["came"] == answers[0]["came"]
        assert answer["left"] > 0
        assert answer["sent"] > 1001 / 2


@pytest.mark.parametrize("how", long_except(["raises", "before", "killed"], "killed"))
def test_a_rank_whose_part_of_the_hook_fails_is_named_at_all_ranks_of_any_backend(how):
    """Long before gloo's timeout of half an hour."""
    started = start(RANK, "any_backend_fails", 4, BACKEND="gloo", HOW=how)
    answers = answers_of(started[:3] if how == "killed" else started)
    if how == "before":  # there it is what was raised
        assert "rank 3" not in answers.pop()[0]
    if how == "killed":
        started[3].communicate(timeout=PATIENCE_S)
    why = {"raises": "rank 3 could not average gradients: MemoryError: no room left",
           "before": "rank 3 could not average gradients: TypeError", "killed": "rank 3 is gone"}
    for first, again in answers:
        assert why[how] in first
        assert why[how] in again


@long
@pytest.mark.parametrize("backend", ["", "cpu:gloo,cuda:gloo"])
def test_the_hook_takes_groups_with_a_backend_for_each_kind_of_device(backend):
    answers = answers_of(start(RANK, "any_backend", 4, BACKEND=backend, WITHIN="all_reduce"))
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.long
@pytest.mark.parametrize("backend", long_except(["gloo", "lightcc"], "gloo"))
def test_the_hook_averages_what_no_sum_would_hold(backend):
    assert answers_of(start(RANK, "large", 4, BACKEND=backend)) == ["right"] * 4


def test_hosts_with_different_numbers_of_ranks_are_refused_at_all_ranks():
    answers = answers_of(start(RANK, "refused", 3, BACKEND="gloo", HOSTS="001"))
    assert answers[0].startswith("the hosts have 2, 1 ranks; a bucket is divided among the ranks")
    assert answers == [answers[0]] * 3
