"""Keys of how a model is split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.schema import TopologyError, load
from sim.schema.parallel_keys import WORDS, Parallel
from tests.sim.step.test_mixture import workload
from tests.support.cluster_files import topology, write


def test_sends_beside_passes_without_pieces_are_refused(tmp_path):
    path = write(tmp_path, topology(gpus=4, **workload(), scenario={"parallel": {
        "pipeline": 2, "pipeline_overlap": True}}))
    with pytest.raises(TopologyError, match="has no effect without interleave") as caught:
        load(path)
    assert caught.value.key == "scenarios[0].parallel.pipeline_overlap"


@pytest.mark.parametrize("word", WORDS)
def test_a_word_stands_for_a_mapping(tmp_path, word):
    shard = {} if word == "data" else {"shard": word}
    by_word, by_keys = (load(write(tmp_path, topology(gpus=2, scenario={"parallel": given})))
                        for given in (word, shard))
    assert by_word.scenarios[0].parallel == by_keys.scenarios[0].parallel
    assert by_word.scenarios[0].parallel.is_sharded == (word in ("fsdp", "hsdp"))


@given(*[st.sampled_from([1, 2, 4, 8])] * 3)
def test_a_copy_is_split_over_the_product_of_its_groups(tensor, context, pipeline):
    assert Parallel(tensor=tensor, context=context, pipeline=pipeline).split == (
        tensor * context * pipeline)


def test_tensor_may_stand_above_or_under_parallel_but_not_both(tmp_path):
    above, under = (load(write(tmp_path, topology(gpus=2, scenario=given, workload={
        "model": "gpt2", "batch": 1, "framework": "free"}))).scenarios[0].layout
        for given in ({"tensor": 2}, {"parallel": {"tensor": 2}}))
    assert above == under
    with pytest.raises(TopologyError, match="stands under parallel as well"):
        load(write(tmp_path, topology(gpus=2, scenario={"tensor": 2, "parallel": {"tensor": 2}})))
