"""Splits of a model that cannot be."""

from __future__ import annotations

import pytest

from sim.schema import TopologyError, load
from tests.sim.step.test_mixture import EXPERTS, SHAPE, workload
from tests.support.cluster_files import topology, write


@pytest.mark.parametrize(("layout", "says"), [
    ({"shard": "fsdp", "replicate": 2}, "has no effect without shard: hsdp"),
    ({"shard": "hsdp", "replicate": 3}, "16 GPUs of a stage are no 3 groups"),
    ({"shard": "hsdp", "replicate": 16, "tensor": 2}, "are no 16 groups of shards")])
def test_groups_of_shards_that_cannot_be_are_one_sentence(tmp_path, layout, says):
    path = write(tmp_path, topology(hosts=4, gpus=4, scenario={"parallel": layout}, **workload()))
    with pytest.raises(TopologyError, match=says) as caught:
        load(path)
    assert caught.value.key == "scenarios[0].parallel.replicate"


@pytest.mark.parametrize(("layout", "key", "says"), [
    ({"tensor": 3}, "tensor", "3 does not divide 2, 8 GPUs"),
    ({"tensor": 4, "sequence": True, "tensor_overlap": True}, "tensor_overlap",
     "by the NVLink of a host, and a tensor group takes 2 hosts"),
    ({"tensor": 4, "shard": "hsdp"}, "shard", "allowed: replicate beside it, or tensor groups")])
def test_tensor_groups_over_hosts_that_cannot_be_are_one_sentence(tmp_path, layout, key, says):
    path = write(tmp_path, topology(hosts=4, gpus=2, scenario={"parallel": layout}, **workload()))
    with pytest.raises(TopologyError, match=says) as caught:
        load(path)
    assert caught.value.key == f"scenarios[0].parallel.{key}"


def test_tensor_groups_over_hosts_of_two_sizes_are_refused(tmp_path):
    """A group of eight would take all of one host, or halves of two others."""
    given = topology(gpus=4, scenario={"parallel": {"tensor": 8}}, **workload())
    (group,) = given["hosts"]
    given["hosts"] = [group, group | {"name": "k", "gpus": group["gpus"] | {"count": 8}}]
    with pytest.raises(TopologyError, match="8 does not divide 24, 4, 8 GPUs"):
        load(write(tmp_path, given))


@pytest.mark.parametrize(("key", "value", "model", "parallel", "says"), [
    ("expert_chunks", 4, SHAPE, {}, "has no experts"),
    ("expert_overlap", "micro-steps", SHAPE, {}, "has no experts"),
    ("expert_chunks", 4, EXPERTS, {"shard": "fsdp"}, "no token is sent"),
    ("expert_overlap", "micro-steps", EXPERTS, {}, "one micro-step has no other")])
def test_hiding_without_travelling_tokens_is_refused(tmp_path, key, value, model, parallel, says):
    with pytest.raises(TopologyError, match=says) as caught:
        load(write(tmp_path, topology(hosts=2, gpus=2, **workload(model), scenario={
            "parallel": parallel, key: value})))
    assert caught.value.key == f"scenarios[0].{key}"


@pytest.mark.parametrize(("parallel", "key", "says"), [
    ({"sequence": True}, "sequence", "no effect without tensor"),
    ({"interleave": 2}, "interleave", "no effect without pipeline"),
    ({"schedule": "zero-bubble"}, "schedule", "no effect without pipeline"),
    ({"pipeline": 2, "schedule": "zb-v"}, "schedule", "two pieces a stage; allowed: interleave: 2"),
    ({"pipeline": 2, "interleave": 4, "schedule": "dualpipe-v"}, "schedule", "two pieces a stage"),
    ({"pipeline": 2, "interleave": 2, "schedule": "dualpipe-v"}, "schedule",
     "1 micro-steps are fewer than 4 pieces of stages; allowed: zb-v"),
    ({"tensor": 3}, "tensor", "3 does not divide 8 GPUs"),
    ({"tensor": 16}, "tensor", "16 does not divide 8 GPUs"),
    ({"context": 3}, "context", "does not divide 8 GPUs"),
    ({"data": 3, "tensor": 2}, "data", "3 copies on 2 GPUs each are not 8 GPUs; allowed: 4"),
    ({"pipeline": 8, "interleave": 2}, "interleave", "16 pieces of 8 blocks"),
    ({"pipeline": 2, "interleave": 2}, "interleave", "1 micro-steps do not fill 2 stages"),
    ({"expert": 2}, "expert", "has no experts"),
    ({"tensor": 2, "shard": "zero3"}, "shard", "did you mean 'zero"),
    ("fsdq", "", "found 'fsdq'"),
])
def test_a_forbidden_combination_is_one_sentence(tmp_path, parallel, key, says):
    with pytest.raises(TopologyError, match=says) as caught:
        load(write(tmp_path, topology(hosts=1, gpus=8, scenario={"parallel": parallel},
                                      **workload())))
    assert caught.value.key == f"scenarios[0].parallel{'.' if key else ''}{key}"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("alltoall", ["once-per-host", "chosen"])
def test_groups_of_experts_that_gpus_would_share_are_refused(tmp_path, alltoall):
    model = SHAPE | {"experts": {"count": 24, "top_k": 2, "ffn": 64, "groups": 3}}
    path = write(tmp_path, topology(hosts=2, gpus=4, scenario={"alltoall": alltoall},
                                    **workload(model)))
    with pytest.raises(TopologyError, match="3 groups of experts are not whole on 8 GPUs, 4 a "
                                            "host; allowed: direct or hierarchical") as caught:
        load(path)
    assert caught.value.key == "scenarios[0].alltoall"
