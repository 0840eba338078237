"""Memory of a step against published formulas and figures, and what is refused for want of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner

from sim.run import main
from sim.schema import load
from sim.schema.parallel_keys import Parallel
from sim.schema.parameters import load_framework
from sim.step.gpu_memory import RESERVED, count, micro_steps_kept
from sim.step.groups import Groups
from sim.step.recipe import Recipe
from sim.workloads.transformer import Experts, Transformer, build
from tests.sim.step.test_stages import torchs_orders
from tests.support.cluster_files import topology, write
from tests.support.sim_runs import rows_of

LAYERS, WIDTH, HEADS, TOKENS, BATCH = 24, 6144, 64, 2048, 4
GPT = Transformer(LAYERS, WIDTH, HEADS, 51200, bias="all", head="none", positions=TOKENS,
                  dropout=True)
SBH = TOKENS * BATCH * WIDTH


def recipe(shape=GPT, **given):
    return Recipe(build(shape, TOKENS), BATCH, load_framework("horovod", {}),
                  **{"gradient_bytes": 2, "element_bytes": 2, "flash": False} | given)


def activations(ranks=1, host=8, **given):
    made = recipe(**given)
    return count(made, Groups(made.layout, ranks, host)).activations


def test_gradients_in_32_bits_make_18_bytes_of_a_parameter():
    """Megatron-LM, docs on its distributed optimizer: 2 of weights, 4 of gradients, 12 beside."""
    half, wide = (count(made, Groups(made.layout, 1, 8)) for made in (
        recipe(), recipe(gradient_bytes=4)))
    parameters = half.weights / 2
    assert wide.gradients == 4 * parameters
    assert wide.weights + wide.gradients + wide.optimizer == 18 * parameters
    assert wide.activations == half.activations


@pytest.mark.parametrize(("layout", "recompute", "bytes_per_sbh"), [
    ({}, "none", 34 + 5 * HEADS * TOKENS / WIDTH),
    ({"tensor": 8}, "none", 10 + 24 / 8 + 5 * HEADS * TOKENS / WIDTH / 8),
    ({"tensor": 8, "sequence": True}, "none", (34 + 5 * HEADS * TOKENS / WIDTH) / 8),
    ({"tensor": 8}, "selective", 10 + 24 / 8),
    ({"tensor": 8, "sequence": True}, "selective", 34 / 8),
])
def test_activations_of_a_block_are_those_of_korthikanti(layout, recompute, bytes_per_sbh):
    """Reducing Activation Recomputation, table 2."""
    found = activations(8, layout=Parallel(**layout), recompute=recompute)
    assert found == pytest.approx(LAYERS * SBH * bytes_per_sbh, rel=1e-3)


def test_full_recomputation_keeps_inputs_and_works_on_one_block():
    assert activations(recompute="full") == pytest.approx(
        LAYERS * 2 * SBH + SBH * 34, rel=1e-3)


def test_recomputation_by_operators_keeps_half_and_works_on_one_block():
    assert activations(recompute="ops") == pytest.approx(
        LAYERS * SBH * 34 / 2 + SBH * 34, rel=1e-3)


@pytest.mark.parametrize(("stages", "interleave", "micro", "layers"), [
    (4, 1, 16, LAYERS), (4, 2, 16, LAYERS * (1 + 3 / 8)), (4, 1, 2, LAYERS / 2)])
def test_the_first_stage_of_a_pipeline_keeps_as_many_micro_steps_as_stages(
        stages, interleave, micro, layers):
    """Korthikanti, section 4.2.3."""
    layout = Parallel(pipeline=stages, interleave=interleave)
    found = activations(8, layout=layout, recompute="selective", accumulation=micro)
    assert found == pytest.approx(layers * 34 * SBH, rel=1e-3)


@pytest.mark.parametrize(("schedule", "pieces"), [
    ("1f1b", 2), ("1f1b", 4), ("zero-bubble", 1), ("zero-bubble", 2), ("zero-bubble", 4),
    ("zb-v", 2), ("dualpipe-v", 2)])
def test_each_stage_keeps_what_torchs_order_of_passes_does(schedule, pieces):
    """A piece keeps a micro-step from its forward pass to the gradients of its weights."""
    layout = Parallel(pipeline=4, interleave=pieces, schedule=schedule)
    made = recipe(layout=layout, recompute="selective", accumulation=16)
    most = []
    for order in torchs_orders(schedule, 4, pieces, 16):
        kept, peak = 0, 0
        for passes in order:
            kept += sum(kind == "F" for kind, *_ in passes)
            peak = max(peak, kept)
            kept -= sum(kind in ("W", "B") for kind, *_ in passes)
        most.append(peak)
    assert [pieces * micro_steps_kept(made, stage) for stage in range(4)] == pytest.approx(most)
    fullest = count(made, Groups(layout, 8, 8)).activations
    assert fullest == pytest.approx(max(most) / pieces * LAYERS / 4 * 34 * SBH, rel=1e-3)


@pytest.mark.parametrize(("shard", "weights", "gradients", "optimizer"), [
    ("none", 2, 4, 12), ("zero1", 2, 4, 3), ("zero2", 2, 1, 3), ("fsdp", 2, 4, 3),
    ("hsdp", 2, 4, 6)])
def test_a_stage_keeps_whole_what_it_does_not_scatter(shard, weights, gradients, optimizer):
    """Bytes of a parameter, of four copies on two hosts; torch's FSDP scatters in the last
    micro-step, and until then adds whole gradients up."""
    made = recipe(gradient_bytes=4, layout=Parallel(pipeline=2, shard=shard), accumulation=4)
    memory = count(made, Groups(made.layout, 8, 2))
    parameters = memory.weights / weights
    assert parameters == pytest.approx(made.model.parameters / 2, rel=0.05)
    assert memory.gradients == pytest.approx(gradients * parameters, rel=1e-6)
    assert memory.optimizer == pytest.approx(optimizer * parameters, rel=1e-6)


def test_flash_keeps_no_scores_and_context_splits_tokens():
    assert activations(flash=True) == activations(recompute="selective")
    split = activations(8, flash=True, layout=Parallel(context=8))
    assert split == pytest.approx(activations(flash=True) / 8, rel=1e-3)


def test_logits_are_kept_in_four_bytes():
    more = activations(shape=replace(GPT, head="tied")) - activations()
    assert more == 4 * TOKENS * BATCH * 51200


def test_each_token_predicted_ahead_has_logits_of_its_own():
    plain, ahead = (activations(shape=replace(GPT, head="tied", ahead=number))
                    for number in (0, 1))
    block = SBH * (34 + 5 * HEADS * TOKENS / WIDTH)
    assert ahead - plain == pytest.approx(4 * TOKENS * BATCH * 51200 + block, rel=1e-6)


@pytest.mark.parametrize(("shard", "gigabytes"), [("none", 120), ("zero1", 31.4), ("zero2", 16.6),
                                                  ("fsdp", 1.9)])
def test_shards_are_those_of_zero(shard, gigabytes):
    """ZeRO, figure 1: 7.5 B parameters on 64 GPUs; beside activations and buffers."""
    shape = Transformer(36, 4096, 32, 51200, bias="all", head="tied", positions=1024)
    made = recipe(shape, layout=Parallel(shard=shard))
    assert made.model.parameters == pytest.approx(7.46e9, rel=0.01)
    memory = count(made, Groups(made.layout, 64, 8))
    states = memory.weights + memory.gradients + memory.optimizer
    assert states / 1e9 == pytest.approx(gigabytes * made.model.parameters / 7.5e9, rel=0.02)


@pytest.mark.parametrize(("layout", "ranks_of_experts"), [
    ({}, 64), ({"expert": 8}, 8), ({"shard": "fsdp"}, 64), ({"shard": "zero1"}, 64),
    ({"expert": 8, "shard": "zero1"}, 64), ({"tensor": 8}, 64), ({"expert": 4, "tensor": 8}, 32),
    ({"expert": 8, "shard": "fsdp"}, 64), ({"expert": 4, "shard": "hsdp"}, 8)])
def test_experts_lie_on_the_ranks_that_share_them(layout, ranks_of_experts):
    """Of the optimizer, whose states zero1 shares among the copies of an expert as well."""
    made = recipe(replace(GPT, experts=Experts(64, 2, WIDTH)), layout=Parallel(**layout))
    plain = recipe(layout=made.layout)
    more = (count(made, Groups(made.layout, 64, 8)).optimizer
            - count(plain, Groups(made.layout, 64, 8)).optimizer)
    experts = LAYERS * 64 * 2 * WIDTH**2
    networks = LAYERS * 8 * WIDTH**2 / {"none": 1, "hsdp": 8}.get(layout.get("shard", "none"), 64)
    wanted = 12 * (experts / ranks_of_experts - networks / layout.get("tensor", 1))
    assert more == pytest.approx(wanted, rel=0.01)


def test_hybrid_shards_are_those_of_a_host():
    for shard, ranks in (("hsdp", 8), ("fsdp", 64)):
        made = recipe(layout=Parallel(shard=shard))
        memory = count(made, Groups(made.layout, 64, 8))
        assert memory.optimizer == pytest.approx(12 * made.model.parameters / ranks, rel=1e-6)


def test_hybrid_shards_may_be_those_of_several_hosts():
    made = recipe(layout=Parallel(shard="hsdp", replicate=2, tensor=2))
    memory = count(made, Groups(made.layout, 64, 8))
    assert memory.optimizer == pytest.approx(12 * made.model.parameters / 2 / 16, rel=1e-6)


def test_buffers_are_copies_of_gradients_or_gathered_units():
    assert count(recipe(), Groups(Parallel(), 8, 8)).buffers == RESERVED
    by_size = recipe(fusion="size")
    assert count(by_size, Groups(Parallel(), 8, 8)).buffers == (
        RESERVED + 2 * by_size.model.parameters)
    sharded = recipe(layout=Parallel(shard="fsdp"))
    table = (51200 + TOKENS) * WIDTH  # what lies before the first block is one unit
    block = 12 * WIDTH**2 + 13 * WIDTH
    assert count(sharded, Groups(sharded.layout, 8, 8)).buffers == (
        RESERVED + 3 * 2 * max(table, block))


# ---- what the command says

OWN = {"layers": 32, "width": 4096, "heads": 32, "kv_heads": 8, "vocabulary": 128256,
       "ffn": 14336, "gated": True, "norm": "rms"}
EIGHT = {"hosts": 2, "gpus": 8, "host": {"gpus": {"count": 8, "model": "A100"}},
         "workload": {"model": OWN, "sequence": 4096, "batch": 1, "framework": "free",
                      "precision": "bf16"}}


def file(folder, **given):
    return write(folder, topology(**EIGHT | given))


def command(folder, **given):
    return CliRunner().invoke(main, [str(file(folder, **given)), "--quiet"])


def test_memory_that_the_file_gives_counts(tmp_path):
    gpus = {"gpus": {"count": 8, "model": "any", "effective": "100TFLOPS"}}
    assert rows_of(file(tmp_path, host=gpus))
    small = {"gpus": gpus["gpus"] | {"memory": "80GB"}}
    assert command(tmp_path, host=small).exit_code == 2
    path = write(tmp_path, topology(**EIGHT | {"host": small}))
    assert load(path).hosts[0].gpus.memory_bytes == 80 * 10**9


# ---- tokens/s and the share of the data sheet

@pytest.mark.parametrize("recompute", ["none", "full"])
def test_mfu_counts_the_models_own_arithmetic(tmp_path, recompute):
    """One GPU at half its sheet's 312 TFLOP/s; what is computed again takes time, counts not."""
    model = {"layers": 2, "width": 512, "heads": 8, "vocabulary": 1000}
    given = {"hosts": 1, "gpus": 1, "host": {"gpus": {
        "count": 1, "model": "A100", "effective": "156TFLOPS"}}, "workload": EIGHT["workload"] | {
        "model": model, "sequence": 128, "recompute": recompute}}
    (row,) = rows_of(file(tmp_path, **given))
    network = load(write(tmp_path, topology(**EIGHT | given))).workload.network
    blocks = sum(layer.forward_flops for layer in network.layers if "layers." in layer.name)
    own = network.forward_flops + network.backward_flops
    done = own + (blocks if recompute == "full" else 0)
    assert row["mfu"] == pytest.approx(0.5 * own / done)
    assert row["tokens_per_s"] == pytest.approx(128 * row["images_per_s"])
    assert row["tokens_per_s"] * own / 128 == pytest.approx(row["mfu"] * 312e12)


def test_images_have_no_tokens(tmp_path):
    (row,) = rows_of(file(tmp_path, workload={
        "model": "vgg16", "batch": 1, "framework": "free"}))
    assert row["tokens_per_s"] is row["mfu"] is None


def test_networks_of_convolutions_are_counted_and_refused(tmp_path):
    """VGG-16 by hand: the image, what convolutions and the first four pools give, and 8 bytes for
    each output of a pool; torch's own count is in `tests/sim/workloads/test_torch_module.py`."""
    kept, pooled = 3 * 224**2, 0
    for stage, (filters, depth) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))):
        kept += depth * filters * (224 >> stage)**2 + pooled
        pooled = filters * (112 >> stage)**2
        kept += 8 // 4 * pooled
    given = {"model": "vgg16", "batch": 100, "framework": "free"}
    (row,) = rows_of(file(tmp_path, workload=given))
    assert row["memory_bytes"]["activations"] == 4 * 100 * kept
    done = command(tmp_path, workload=given | {"batch": 2000})
    assert done.exit_code == 2
    assert "batch: 1000, accumulation: 2" in done.output
