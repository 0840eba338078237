"""Compute of a step small enough to work out by hand: its passes, buckets and slow GPUs."""

from __future__ import annotations

import pytest

from sim.schema import load
from sim.workloads.layers import Layer, Tensor
from sim.workloads.model import block_of
from sim.workloads.models import get_model
from tests.sim.step.test_mixture import run, workload
from tests.sim.step.test_step_graph import sent
from tests.sim.step.test_train import SECOND, job, layer, parts_of, step_of
from tests.support.cluster_files import topology, write


@pytest.mark.parametrize(("overlap", "seconds"), [(1.0, 7.5), (0.5, 8), (0.0, 9)])
def test_a_poor_overlap_holds_buckets_back(tmp_path, overlap, seconds):
    """b (1.5 s) starts at 4 s, at 5 s or only when the backward pass ends at 6 s; a follows it."""
    made = job(tmp_path, [layer("a", 1.5), layer("b", 1.5)], costs={"overlap": overlap})
    assert step_of(made) == pytest.approx(seconds)


def test_fusion_waits_for_the_cycle_and_sends_one_bucket(tmp_path):
    """Ticks at multiples of 10 s: both tensors leave at 10 s together."""
    made = job(tmp_path, [layer("a", 1), layer("b", 1)], threshold_bytes=1 << 40, cycle_s=10.0)
    assert step_of(made) == pytest.approx(12)
    assert parts_of(made) == pytest.approx(
        {"compute_s": 6, "exposed_transfer_s": 2, "message_s": 4})
    assert len([s for s in made.spans if s.kind == "transfer"]) == 1


def test_a_small_threshold_sends_each_tensor_alone_at_the_tick(tmp_path):
    made = job(tmp_path, [layer("a", 1), layer("b", 1)], threshold_bytes=4 * SECOND, cycle_s=10.0)
    assert step_of(made) == pytest.approx(12)
    assert len([s for s in made.spans if s.kind == "transfer"]) == 2


def test_fusion_by_size_leaves_when_a_bucket_is_full(tmp_path):
    """A second's worth closes a bucket: b and a alone, though they are ready at once."""
    tensors = (Tensor("a", SECOND), Tensor("b", SECOND))
    made = job(tmp_path, [Layer("l", tensors, 1, 2)], fusion="size", threshold_bytes=4 * SECOND)
    assert step_of(made) == pytest.approx(5)
    assert len([s for s in made.spans if s.kind == "transfer"]) == 2


def test_copies_into_buckets_lengthen_the_backward_pass(tmp_path):
    made = job(tmp_path, [layer("a", 1), layer("b", 1)], costs={"copy_per_element": 1e-6})
    assert made.work.compute_s == pytest.approx(6 + 2 * SECOND * 1e-6)
    assert step_of(made) == pytest.approx(7 + 2 * SECOND * 1e-6)  # b's average is hidden


def test_a_slow_gpu_slows_what_is_left_of_a_layer(tmp_path):
    """From 2 s to 3.5 s at half the speed: at 2 s a second of work is left, at 3.5 s a quarter."""
    made = job(tmp_path, [layer("a", 1)])

    def fault():
        yield made.env.timeout(2)
        made.slow.set("f", 0.5)
        yield made.env.timeout(1)
        made.slow.set("milder", 0.8)
        yield made.env.timeout(0.5)
        made.slow.set("f", None)
        made.slow.set("milder", None)

    made.env.process(fault())
    assert step_of(made) == pytest.approx(3.75 + 1)


def test_recomputation_costs_its_forward_pass(tmp_path):
    def compute_s(recompute):
        return run(tmp_path, gpus=1, **workload(recompute=recompute))[1].breakdown.compute_s

    network = load(write(tmp_path, topology(**workload()))).workload.network
    blocks = sum(layer.forward_flops for layer in network.layers if block_of(layer))
    scores = sum(layer.forward_flops for layer in network.layers if "scores" in layer.name)
    whole = network.forward_flops + network.backward_flops
    plain = compute_s("none")
    assert compute_s("full") / plain == pytest.approx((whole + blocks) / whole)
    assert compute_s("selective") / plain == pytest.approx((whole + scores) / whole)


def test_by_operators_every_second_product_is_computed_again():
    """Of Llama's seven the key, the output and the network's second: as torchtitan counts."""
    again = get_model("llama3-8b", 64).every_second
    assert {name.split(".", 2)[2] for name in again} == {
        "attention.key", "attention.output", "mlp.up"}
    assert len(again) == 3 * 32


def test_blocks_that_are_computed_again_add_up_again(tmp_path):
    """Six allreduces of activations a block instead of four."""
    plain, again = (sent(tmp_path, "nvlink_out", hosts=1, gpus=4, scenario={"tensor": 4},
                         **workload(recompute=recompute)) for recompute in ("none", "full"))
    assert again == pytest.approx(1.5 * plain, rel=1e-6)
