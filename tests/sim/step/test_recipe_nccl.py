"""A training job with ``allreduce: nccl`` runs each buffer as NCCL would at its size."""

from __future__ import annotations

import pytest

from sim.answer.collective_bench import measure
from sim.answer.scenario import Run, run_scenario
from sim.step.recipe import share_plan
from sim.workloads.models import get_model
from tests.support.cluster_files import cluster

NCCL = {"allreduce": "nccl", "fusion": {"threshold": "0B", "cycle": "0s"}}
NO_COMPUTE = {"gpus": {"count": 2, "model": "V100", "effective": "1000000PFLOPS"}}


def sizes():
    """Bytes of each of VGG16's gradients."""
    return [4 * tensor.elements for tensor in get_model("vgg16").tensors]


def step_s(built, gpus=None):
    scenario = built.topology.scenarios[0]
    return run_scenario(built, scenario, gpus or built.gpus)[0].step_s


def chosen(built, nbytes):
    return measure(built, "allreduce", [nbytes], algorithms=["nccl"]).rows[0]


def test_each_buffer_takes_the_time_of_nccls_choice_for_its_size(tmp_path):
    built = cluster(tmp_path, hosts=3, scenario=NCCL, host=NO_COMPUTE)
    rows = [chosen(built, nbytes) for nbytes in sizes()]
    assert {"tree LL", "ring Simple"} <= {row.choice for row in rows}
    assert step_s(built) == pytest.approx(sum(row.time_s for row in rows), rel=1e-3)


def test_nccl_beats_a_ring_of_simple_where_buffers_are_short(tmp_path):
    def seconds(allreduce):
        return step_s(cluster(tmp_path, hosts=8, gpus=8, scenario=NCCL | {"allreduce": allreduce},
                              host={"gpus": NO_COMPUTE["gpus"] | {"count": 8}}))

    longest = max(sizes())
    assert seconds("nccl") < seconds("ring")
    built = cluster(tmp_path, hosts=2, scenario=NCCL)
    assert chosen(built, longest).choice == "ring Simple"


def test_a_job_on_one_host_is_seen_as_one(tmp_path):
    """Between GPUs of one host NCCL trusts LL128, whatever the VPC outside."""
    eight = {"gpus": NO_COMPUTE["gpus"] | {"count": 8}}
    both = cluster(tmp_path, hosts=2, vpc={"vnics": 1}, scenario=NCCL, host=eight)
    alone = cluster(tmp_path, hosts=1, vpc={"vnics": 1}, scenario=NCCL, host=eight)
    assert "ring LL128" in {chosen(alone, nbytes).choice for nbytes in sizes()}
    assert "ring LL128" not in {chosen(both, nbytes).choice for nbytes in sizes()}
    assert step_s(both, 8) == pytest.approx(step_s(alone), rel=1e-9)


def test_sums_of_activations_go_by_nccls_choice_too(tmp_path):
    """LL and LL128 save latency inside hosts, where all of these collectives are."""
    def seconds(allreduce):
        return step_s(cluster(tmp_path, hosts=1, gpus=2, host=NO_COMPUTE | {
            "nvlink": {"rate": "100GB/s", "latency": "50us"}},
            scenario={"allreduce": allreduce, "tensor": 2},
            workload={"model": "bert-base", "batch": 1, "framework": "free"}))

    assert seconds("nccl") < 0.9 * seconds("ring")


@pytest.mark.parametrize("collective", ["allgather", "reduce-scatter"])
def test_gathers_and_scatters_of_parameters_go_by_nccls_choice_too(tmp_path, collective):
    built = cluster(tmp_path, hosts=2, gpus=2, scenario={"allreduce": "nccl", "parallel": "fsdp"})
    job = Run(built, built.topology.scenarios[0], 4).jobs[0]
    for elements in (2, 10**8):
        chosen = share_plan(job.recipe, job.groups, collective, elements)
        row = measure(built, collective, [4 * elements], algorithms=["nccl"]).rows[0]
        assert row.choice == f"ring {chosen.protocol.name}"
        assert chosen.plan.name == collective


def test_a_tree_of_tensor_parallel_replicas_has_one_rank_of_each_group(tmp_path):
    """Of a host's four GPUs in groups of two, two average: their tree goes by chains of two."""
    def seconds(gpus, tensor):
        given = {"allreduce": "tree", "tensor": tensor}
        built = cluster(tmp_path, hosts=4, gpus=gpus, scenario=given, rate_bps=1e9,
                        host={"gpus": NO_COMPUTE["gpus"] | {"count": gpus}},
                        workload={"model": "gpt2", "batch": 1, "framework": "free"})
        return step_s(built)

    assert seconds(4, 2) == pytest.approx(seconds(2, 1), rel=0.1)
