"""An optimizer that averages gradients over all ranks."""

from __future__ import annotations

import pytest

from tests.support.levels import long, long_except


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
