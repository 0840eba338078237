"""Convolutions where a GPU's speed is its data sheet's: seconds of a step, against hand counts."""

import pytest

from sim.answer.scenario import Run
from tests.support.cluster_files import cluster

BATCH = 8
SIDE = 28
RATE, MEMORY = 0.6 * 15.7e12, 0.8 * 900e9
"""FLOP/s and bytes/s that a V100 reaches."""
UNITS = 0.6 * 125e12
"""FLOP/s of its matrix units."""
MODEL = """\
name: one-convolution
source: by hand
sample: image
layers:
- {{name: conv, tensors: {{conv.weight: {weight}}}, forward_flops: {flops},
   backward_flops: {backward}, maps: {maps}{more}}}
"""


def step_s(folder, channels, kernel=3, *, winograd=True, moved=(0, 0), gpu=None, **workload):
    """Seconds of both passes of one convolution that keeps side and channels."""
    weight = channels * channels * kernel**2
    flops = 2 * weight * SIDE**2
    maps = 2 * channels * SIDE**2
    more = f", winograd: {str(winograd).lower()}"
    if any(moved):
        more += f", moved_forward: {moved[0]}, moved_backward: {moved[1]}"
    (folder / "model.yaml").write_text(MODEL.format(
        weight=weight, flops=flops, backward=2 * flops, maps=maps, more=more))
    made = cluster(folder, hosts=1, gpus=1, rate_bps=1e18, host={
        "gpus": {"count": 1, "model": "V100"} | (gpu or {}), "nvlink": "none"}, workload={
        "model": str(folder / "model.yaml"), "batch": BATCH, "framework": "free"} | workload)
    run = Run(made, made.topology.scenarios[0], 1)
    return run.go()[0].breakdown.compute_s - run.jobs[0].update_s, 3 * flops * BATCH, maps * BATCH


def test_fp32_takes_winograds_share_of_the_products(tmp_path):
    seconds, flops, _ = step_s(tmp_path, 512)
    assert seconds == pytest.approx(flops / 2.25 / RATE)
    seconds, flops, _ = step_s(tmp_path, 512, winograd=False)
    assert seconds == pytest.approx(flops / RATE)


def test_maps_bound_a_convolution_with_few_products(tmp_path):
    """Three products a step, each of which moves input and output once."""
    seconds, flops, maps = step_s(tmp_path, 8, kernel=1, winograd=False)
    assert flops / RATE < 3 * 4 * maps / MEMORY
    assert seconds == pytest.approx(3 * 4 * maps / MEMORY)


def test_matrix_units_transpose_maps_that_have_channels_first(tmp_path):
    last, flops, maps = step_s(tmp_path, 512, precision="fp16", channels_last=True)
    first, _, _ = step_s(tmp_path, 512, precision="fp16")
    assert last == pytest.approx(flops / UNITS)
    assert first - last == pytest.approx(2 * 3 * 2 * maps / MEMORY)


def test_channels_last_changes_nothing_in_fp32(tmp_path):
    assert step_s(tmp_path, 64)[0] == step_s(tmp_path, 64, channels_last=True)[0]


def test_fp8_leaves_a_convolution_outside_of_blocks_in_16_bits(tmp_path):
    half, narrow = (step_s(tmp_path, 512, gpu={"model": "H100"}, channels_last=True,
                           precision=precision)[0] for precision in ("bf16", "fp8"))
    assert narrow == pytest.approx(half)


def test_what_lies_beside_the_products_takes_its_bytes(tmp_path):
    alone, _, _ = step_s(tmp_path, 512)
    both, _, _ = step_s(tmp_path, 512, moved=(5000, 8000))
    assert both - alone == pytest.approx(BATCH * 4 * 13000 / MEMORY)


def test_a_given_speed_holds_for_all_of_it(tmp_path):
    given = {"effective": "10TFLOPS"}
    seconds, flops, _ = step_s(tmp_path, 8, kernel=1, moved=(5000, 8000), gpu=given)
    assert seconds == pytest.approx(flops / 10e12)


@pytest.mark.parametrize(("gpu", "model", "batch", "keys", "published", "within"), [
    ("V100", "resnet50", 112, {}, 367, 0.1),
    ("V100", "resnet50", 256, {"precision": "fp16", "channels_last": True}, 1200, 0.05),
    ("A100", "resnet50", 256, {"precision": "tf32"}, 938, 0.1),
    ("A100", "resnet50", 256, {"precision": "fp16", "channels_last": True}, 2470, 0.2),
    ("P100", "resnet50", 64, {}, 238, 0.05),
    ("P100", "vgg16", 64, {}, 132, 0.1),
    ("P100", "inception-v3", 64, {}, 142, 0.4),
])
def test_one_gpu_is_near_what_was_published(tmp_path, gpu, model, batch, keys, published, within):
    """Nothing is fitted: NVIDIA/DeepLearningExamples, ResNet50 v1.5 for PyTorch (21.03);
    TensorFlow, performance/benchmarks.md (2017, DGX-1, synthetic data)."""
    made = cluster(tmp_path, hosts=1, gpus=1, rate_bps=1e18, host={
        "gpus": {"count": 1, "model": gpu}, "nvlink": "none"}, workload={
        "model": model, "batch": batch, "framework": "free"} | keys)
    step = Run(made, made.topology.scenarios[0], 1).go()[0]
    assert batch / step.breakdown.compute_s == pytest.approx(published, rel=within)
