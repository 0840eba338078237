"""Steps as graphs: what each generator computes, sends and waits for, against closed forms."""

from __future__ import annotations

import re

import pytest

from sim.answer.scenario import Run
from sim.schema import TopologyError, load
from sim.schema.parallel_keys import Parallel
from sim.step.step_graph import ON_GPU
from sim.workloads.gradient_buckets import megatron_bucket_bytes
from sim.workloads.layers import Tensor
from sim.workloads.model import block_of
from sim.workloads.models import get_model
from tests.sim.step.test_train import SECOND, job, layer, parts_of, step_of
from tests.support.cluster_files import cluster, topology, write


def sent(folder, block, **given):
    """Bytes that each GPU sends in a step, by the resource that all of them cross."""
    made = cluster(folder, **given)
    run = Run(made, made.topology.scenarios[0], made.gpus)
    run.go()
    resources = made.blocks[block]
    return run.network.fluid.net.carried()[resources.first:resources.first + made.gpus]


def test_fsdp_by_hand(tmp_path):
    """Gathers and scatters of 1 s, forward 1 s, backward 2 s, one stream, one unit ahead.

    Gathers 0 to 1 and 1 to 2 s, forward 1 to 3 s; gathers again 3 to 4 and 4 to 5 s, backward of b
    4 to 6 s, of a 6 to 8 s; scatters 6 to 7 and 8 to 9 s.
    """
    made = job(tmp_path, [layer("h.0.a", 2), layer("h.1.b", 2)], layout=Parallel(shard="fsdp"))
    assert step_of(made) == pytest.approx(9)
    assert parts_of(made) == pytest.approx({"compute_s": 6, "exposed_transfer_s": 3})


def test_fsdp_gathers_no_sooner_than_one_unit_ahead(tmp_path):
    made = job(tmp_path, [layer(f"h.{n}.x", 0.2) for n in range(4)], layout=Parallel(shard="fsdp"))
    graph = made.graph
    for number, operation in enumerate(graph):
        if operation.kind == "gather" and operation.name.endswith("forward"):
            later = [n for n in range(number + 1, len(graph)) if graph[n].kind == "forward"]
            before = [n for n in range(number) if graph[n].kind == "forward"]
            assert operation.after == tuple(before[-2:-1])
            assert graph[later[0]].after == (number,)
    step_of(made)
    begun_s = next(s.start_s for s in made.spans
                   if s.kind == "transfer" and s.name.startswith("h.3 forward"))
    forward = {s.name: s.start_s for s in made.spans if s.kind == "forward"}
    assert begun_s >= forward["h.2"] - 1e-9


def test_a_unit_alone_computes_like_data_parallel(tmp_path):
    """One rank gathers nothing."""
    made = job(tmp_path, [layer("h.0.a", 1)], layout=Parallel(shard="fsdp"), gpus=1)
    assert step_of(made) == pytest.approx(3)


@pytest.mark.parametrize(("parallel", "halves"), [("data", 4), ("zero1", 3), ("fsdp", 4)])
def test_gradients_in_32_bits_are_sent_so_and_parameters_are_not(tmp_path, parallel, halves):
    """Of 16 bits each pass of gradients is one half, of 32 bits two; gathers stay as they are."""
    sums = []
    for gradients in ("as-precision", "fp32"):
        (tmp_path / gradients).mkdir()
        sums.append(sent(tmp_path / gradients, "pcie_out", hosts=2,
                         scenario={"parallel": parallel}, workload={
                             "model": "gpt2", "batch": 1, "precision": "bf16",
                             "gradients": gradients}).sum())
    passes = {"data": 2, "zero1": 2, "fsdp": 3}[parallel]
    assert sums[1] / sums[0] == pytest.approx(halves / passes, rel=1e-3)


@pytest.mark.parametrize("ranks", [2, 4])
def test_fsdp_sends_three_times_the_parameters(tmp_path, ranks):
    """Two allgathers and a reduce-scatter, each (n - 1)/n of 4 bytes a parameter (ZeRO stage 3)."""
    each = sent(tmp_path, "pcie_out", hosts=ranks, scenario={"parallel": "fsdp"},
                workload={"model": "gpt2", "batch": 1, "framework": "free"})
    wanted = 3 * (ranks - 1) / ranks * 4 * get_model("gpt2").parameters
    assert each == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("overlap", [False, True])
def test_tensor_parallelism_sends_four_allreduces_a_block(tmp_path, overlap):
    """Each of 2 (t - 1)/t of batch x tokens x width activations (Megatron-LM), and no averages."""
    gpus, batch = 4, 2
    split = {"tensor": gpus, "sequence": True, "tensor_overlap": overlap}
    each = sent(tmp_path, "nvlink_out", hosts=1, gpus=gpus, scenario={"parallel": split},
                workload={"model": "gpt2", "batch": batch, "framework": "free"})
    activations = batch * 1024 * 768 * 4
    assert each == pytest.approx(12 * 4 * 2 * (gpus - 1) / gpus * activations, rel=1e-5)


@pytest.mark.parametrize("rate", ["1TB/s", "10GB/s"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_overlapped_pieces_hide_behind_a_blocks_arithmetic(tmp_path, rate, recompute):
    """A block takes the longer of its arithmetic and its pieces, and the last of four pieces."""
    def row(**more):
        made = cluster(tmp_path, hosts=1, gpus=4, host={"nvlink": {"rate": rate, "latency": "0s"}},
                       workload={"model": "gpt2", "batch": 2, "framework": "free",
                                 "recompute": recompute},
                       scenario={"parallel": {"tensor": 4, "sequence": True, **more}})
        run = Run(made, made.topology.scenarios[0], 4)
        return run.go()[0].step_s, run.jobs[0].graph

    (plain_s, graph), (overlapped_s, _) = row(), row(tensor_overlap=True)
    reduce_s = 2 * 3 / 4 * 2 * 1024 * 768 * 4 / (1e12 if rate == "1TB/s" else 1e10)
    saved_s = 0.0
    for kind, times in (("forward", 2), ("backward", 2 if recompute == "none" else 4)):
        of_block: dict[str, float] = {}
        for operation in graph:
            block = re.match(r"(h\.\d+)", operation.name)
            if operation.kind == kind and block:
                of_block[block[1]] = of_block.get(block[1], 0.0) + operation.seconds
        assert len(of_block) == 12
        saved_s += sum(min(each, times * reduce_s * 3 / 4) for each in of_block.values())
    assert saved_s > 0.01 * plain_s
    assert plain_s - overlapped_s == pytest.approx(saved_s, rel=1e-3)


@pytest.mark.parametrize(("network", "micro", "behind_s", "ahead_s"), [
    (1, 1, 7.5, 7.0), (4, 1, 12.0, 10.0), (6, 1, 16.0, 14.0), (1, 3, 19.5, 19.0)])
def test_parameters_are_gathered_behind_the_next_forward_pass(tmp_path, network, micro, behind_s,
                                                              ahead_s):
    """Two layers of 1 s forward and 2 s backward; a gather takes half of ``network`` seconds each.

    Ahead, the first layer's is waited for, and the backward pass waits for the other's.
    """
    for overlap, seconds in ((False, behind_s), (True, ahead_s)):
        layout = Parallel(shard="zero1", gather_overlap=overlap)
        made = job(tmp_path, [layer("a", network), layer("b", network)], layout=layout,
                   accumulation=micro)
        assert step_of(made) == pytest.approx(seconds)


@pytest.mark.parametrize("tensor", [1, 4])
def test_buckets_are_of_what_a_rank_holds(tmp_path, tensor):
    """A threshold of 8 MiB is reached by 8 MiB of a rank's own share of the gradients."""
    made = cluster(tmp_path, hosts=2, gpus=tensor,
                   workload={"model": "gpt2", "batch": 1, "framework": "free"},
                   scenario={"fusion": {"rule": "size", "threshold": "8MiB"},
                             "parallel": {"tensor": tensor}})
    graph = Run(made, made.topology.scenarios[0], 2 * tensor).jobs[0].graph
    sizes = [4 * operation.size / tensor for operation in graph if operation.kind == "average"]
    assert sum(sizes) == pytest.approx(4 * get_model("gpt2").parameters / tensor)
    largest = 4 * max(each.elements for layer_ in get_model("gpt2").layers
                      for each in layer_.tensors) / tensor
    assert all(size >= 8 * 2**20 * 0.99 for size in sizes[1:-1])
    assert all(size <= 8 * 2**20 + largest for size in sizes)


@pytest.mark.parametrize(("hosts", "elements"), [(2, 40_000_000), (64, 64_000_000)])
def test_megatrons_buckets_grow_with_the_ranks(tmp_path, hosts, elements):
    """The larger of 40 million elements, and a million a rank (Megatron-Core)."""
    assert megatron_bucket_bytes(hosts, 4) == 4 * elements
    made = cluster(tmp_path, hosts=hosts, gpus=1, frameworks={"mine": {"base": "megatron"}},
                   workload={"model": "gpt2", "batch": 1, "framework": "mine"})
    recipe = Run(made, made.topology.scenarios[0], hosts).jobs[0].recipe
    assert recipe.threshold_bytes == 4 * elements


def test_groups_average_a_share_each(tmp_path):
    """Two hosts of one group: GPU i averages its quarter with GPU i of the other host."""
    each = sent(tmp_path, "pcie_out", hosts=2, gpus=4, scenario={"tensor": 4},
                workload={"model": "gpt2", "batch": 1, "framework": "free"})
    assert each == pytest.approx(4 * get_model("gpt2").parameters / 4, rel=1e-5)


def test_tensor_parallelism_splits_compute_and_batch(tmp_path):
    """Four GPUs do the arithmetic of one batch in a quarter of the time, if links cost nothing."""
    def row(**scenario):
        made = cluster(tmp_path, hosts=1, gpus=4, rate_bps=1e18, scenario=scenario,
                       host={"nvlink": {"rate": "1000TB/s", "latency": "0s"}},
                       workload={"model": "gpt2", "batch": 8, "framework": "free"})
        return Run(made, made.topology.scenarios[0], 4).go()[0]

    data, tensor = row(), row(tensor=4)
    assert tensor.breakdown.compute_s == pytest.approx(data.breakdown.compute_s / 4, rel=1e-6)
    assert tensor.images_per_s == pytest.approx(data.images_per_s, rel=0.02)
    assert tensor.efficiency == pytest.approx(1, rel=0.02)


OVERLAPS = {"tensor": 2, "sequence": True, "tensor_overlap": True}


def test_graphs_wait_only_for_what_stands_before(tmp_path):
    for scenario in ({}, {"parallel": "fsdp"}, {"tensor": 2}, {"parallel": OVERLAPS}, {"parallel": {
            "pipeline": 2, "interleave": 2, "pipeline_overlap": True}}):
        made = cluster(tmp_path, gpus=4, scenario=scenario, workload={
            "model": "gpt2", "batch": 1, "framework": "free", "accumulation": 4})
        graph = Run(made, made.topology.scenarios[0], 8).jobs[0].graph
        assert all(before < number for number, operation in enumerate(graph)
                   for before in operation.after)
        ends = [operation for operation in graph if operation.kind not in ON_GPU]
        assert ends
        assert all(operation.after or operation.kind in ("gather", "overlapped-send")
                   for operation in ends)


def test_blocks_are_separated_from_what_lies_between_them():
    names = {block_of(each) for each in get_model("llama2-7b").layers}
    assert names == {"", *(f"layers.{index}" for index in range(32))}
    assert {block_of(each) for each in get_model("vgg16").layers} == {""}
    assert Tensor("x", SECOND).elements == SECOND


@pytest.mark.parametrize(("given", "key", "says"), [
    ({"gpus": 4, "scenario": {"tensor": 3}}, "tensor", "3 does not divide 4, 8 GPUs"),
    ({"gpus": 4, "scenario": {"tensor": 4, "gpus": [2]}}, "tensor", "4 does not divide"),
    ({"gpus": 4, "scenario": {"parallel": {"tensor": 2, "tensor_overlap": True}}},
     "parallel.tensor_overlap", "has no effect without sequence"),
    ({"scenario": {"parallel": {"shard": "fsdp", "gather_overlap": True}}},
     "parallel.gather_overlap", "gathers what zero1 or zero2 spreads"),
    ({"gpus": 4, "scenario": {"tensor": 2}, "workload": {
        "model": "vgg16", "batch": 1, "framework": "free"}}, "tensor", "model vgg16 is no row"),
    ({"gpus": 4, "scenario": {"tensor": 2, "allreduce": "2d"}}, "allreduce", "'2d' averages hosts"),
    ({"gpus": 4, "scenario": {"allreduce": "tree", "parallel": "fsdp"}}, "allreduce",
     "parallel: fsdp"),
])
def test_a_mismatch_is_refused(tmp_path, given, key, says):
    given = {"workload": {"model": "gpt2", "batch": 1, "framework": "free"}} | given
    with pytest.raises(TopologyError, match=says) as caught:
        load(write(tmp_path, topology(**given)))
    assert caught.value.key == f"scenarios[0].{key}"
