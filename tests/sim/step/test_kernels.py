"""Kernels that memory bounds: seconds of a step on one GPU, against a count by hand."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sim.answer.scenario import Run
from sim.step.kernels import EAGER_LOGIT, GATE, RMS_NORM, ROTARY
from tests.support.cluster_files import cluster

LAYERS, WIDTH, HEADS, TOKENS, BATCH, WORDS = 4, 1024, 16, 512, 2, 1000
MODEL = {"layers": LAYERS, "width": WIDTH, "heads": HEADS, "vocabulary": WORDS, "bias": "all",
         "dropout": True}
PEAK, MEMORY = 312e12, 2039e9
"""NVIDIA A100 data sheet: FLOP/s in 16 bits, bytes/s."""
LOSS_S = 6 * BATCH * TOKENS * WORDS / (0.8 * MEMORY)
"""Time of a fused loss; an eager one moves six times as much."""


def compute_s(folder, gpus=1, sheet=None, scenario=None, **workload):
    """Seconds of both passes, and their FLOPs."""
    made = cluster(folder, hosts=1, gpus=gpus, scenario=scenario, rate_bps=1e18, host={
        "gpus": {"count": gpus, "model": "A100"} | (sheet or {}),
        "nvlink": {"rate": "1000TB/s", "latency": "0s"}}, workload={
        "model": MODEL, "sequence": TOKENS, "batch": BATCH, "framework": "free",
        "precision": "bf16", "kernels": "fused"} | workload)
    run = Run(made, made.topology.scenarios[0], gpus)
    network = made.topology.workload.network
    passes_s = run.go()[0].breakdown.compute_s - run.jobs[0].update_s
    return passes_s, network.forward_flops + network.backward_flops


def test_matrix_products_take_flops_and_the_rest_takes_bytes(tmp_path):
    """95 bytes of s b h both ways a layer, and 6 a logit, at 0.8 of the memory's rate."""
    seconds, flops = compute_s(tmp_path)
    moved = LAYERS * BATCH * TOKENS * WIDTH * (38 + 57)
    assert seconds == pytest.approx(BATCH * flops / (0.73 * PEAK) + moved / (0.8 * MEMORY)
                                    + LOSS_S)


def test_fp8_leaves_attention_and_the_last_layer_in_16_bits(tmp_path):
    """The linear layers of blocks alone take half: 24 s h^2 FLOPs a layer and pass forward."""
    h100 = {"model": "H100"}
    half, narrow = (compute_s(tmp_path, sheet=h100, precision=precision)[0]
                    for precision in ("bf16", "fp8"))
    linear = 3 * BATCH * LAYERS * 24 * TOKENS * WIDTH**2
    saved = linear / (0.6 * 989.4e12) - linear / (0.6 * 1978.9e12)
    assert half - narrow == pytest.approx(saved, rel=2e-3)


def test_a_given_speed_is_that_of_all_products_in_fp8(tmp_path):
    given = {"model": "H100", "effective": "500TFLOPS"}
    half, narrow = (compute_s(tmp_path, sheet=given, precision=precision)[0]
                    for precision in ("bf16", "fp8"))
    assert half == pytest.approx(narrow)


def test_unfused_attention_moves_its_scores(tmp_path):
    """32 bytes a score both ways."""
    fused, unfused = (compute_s(tmp_path, flash=flash)[0] for flash in (True, False))
    moved = LAYERS * BATCH * HEADS * TOKENS**2 * 32
    assert unfused - fused == pytest.approx(moved / (0.8 * MEMORY))


@pytest.mark.parametrize(("recompute", "flash", "moved"), [
    ("full", True, 38 * WIDTH), ("ops", True, 38 * WIDTH),
    ("full", False, 38 * WIDTH + 13 * HEADS * TOKENS),
    ("selective", False, 13 * HEADS * TOKENS), ("selective", True, 0)])
def test_recomputed_blocks_are_moved_again(tmp_path, recompute, flash, moved):
    def beside_s(again):
        """Time that memory adds: the rest of a GPU with one speed for all kernels."""
        keys = {"recompute": again, "flash": flash}
        sheet = compute_s(tmp_path, **keys)[0]
        given = compute_s(tmp_path, sheet={"effective": f"{0.73 * PEAK}FLOPS"}, **keys)[0]
        return sheet - given

    more = beside_s(recompute) - beside_s("none")
    assert more == pytest.approx(LAYERS * BATCH * TOKENS * moved / (0.8 * MEMORY), abs=1e-12)


def test_a_tensor_group_splits_all_but_norms_and_dropouts(tmp_path):
    def beside_s(**parallel):
        given = {"scenario": {"parallel": parallel}, "gpus": 8}
        sheet = compute_s(tmp_path, **given)[0]
        return sheet - compute_s(tmp_path, sheet={"effective": f"{0.73 * PEAK}FLOPS"}, **given)[0]

    alone = beside_s()
    blocks = alone - LOSS_S
    assert beside_s(tensor=8) == pytest.approx(blocks * (10 + 24 / 8) / 34 + LOSS_S / 8)
    assert beside_s(tensor=8, sequence=True) == pytest.approx(alone / 8)
    assert beside_s(context=8) == pytest.approx(alone / 8)


MIXTURE = {"layers": LAYERS, "width": WIDTH, "heads": HEADS, "vocabulary": WORDS,
           "experts": {"count": 8, "top_k": 2, "ffn": 3000}}


def test_a_mixture_moves_the_copies_of_its_tokens(tmp_path):
    """Each of two copies is read twice and written twice either way, its token read and written."""
    seconds, flops = compute_s(tmp_path, model=MIXTURE)
    others = 2 * (4 * WIDTH + 4 * WIDTH + 2 * 2 * 3000)  # two norms, q k v, inputs; before, after
    moved = others * 95 / 34 + 2 * 2 * WIDTH * (4 * 2 + 2)
    assert seconds == pytest.approx(
        BATCH * flops / (0.73 * PEAK) + LAYERS * BATCH * TOKENS * moved / (0.8 * MEMORY) + LOSS_S)


def test_fp8_casts_what_goes_into_experts(tmp_path):
    """Forward 4 bytes for each input of both products, backward for each gradient of an output."""
    h100 = {"model": "H100"}
    half, narrow = (compute_s(tmp_path, sheet=h100, precision=precision, model=MIXTURE)[0]
                    for precision in ("bf16", "fp8"))
    tokens = BATCH * LAYERS * TOKENS
    linear = 3 * tokens * 2 * WIDTH * (4 * WIDTH + 8 + 2 * 2 * 3000)
    saved = linear / (0.6 * 989.4e12) - linear / (0.6 * 1978.9e12)
    casts = tokens * 4 * 2 * 2 * (WIDTH + 3000)
    assert half - narrow == pytest.approx(saved - casts / (0.8 * 3350e9), rel=2e-3)


@pytest.mark.parametrize("parallel", ["data", "zero1"])
def test_shards_of_states_move_as_much_as_copies(tmp_path, parallel):
    one, _ = compute_s(tmp_path)
    seconds, _ = compute_s(tmp_path, gpus=4, scenario={"parallel": parallel})
    assert seconds == pytest.approx(one, rel=1e-6)


# ---- Llama's parts, operation by operation


VIEWS = {"slice", "expand", "unsqueeze", "detach", "view", "alias"}
PICKS = {"nll_loss_forward", "nll_loss_backward"}
"""Operations that read one element of each row."""


class Traffic(TorchDispatchMode):
    """Counts the bytes that operations of torch read and write."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            moved = out if name in PICKS else (args, out)
            self.bytes += sum(one.numel() * one.element_size() for one in tree_leaves(moved)
                              if isinstance(one, torch.Tensor))
        return out


def rms_norm(x, weight):
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def rotary(x, cosine, sine):
    half = x.shape[-1] // 2
    left, right = x[..., :half], x[..., half:]
    return x * cosine + torch.cat((-right, left), -1) * sine


def gate(x, up):
    return torch.nn.functional.silu(x) * up


def loss(logits, targets):
    return torch.nn.functional.cross_entropy(logits.float(), targets)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("function", "fused", "counted"), [
    (rms_norm, (2, 3), lambda wide: RMS_NORM[wide]),
    (rotary, (2, 2), lambda wide: [each * wide for each in ROTARY]),
    (gate, (3, 5), lambda wide: [each * wide for each in GATE])])
def test_pytorch_moves_as_many_bytes_as_are_counted(function, fused, counted, dtype):
    """``fused``: elements that one kernel moves for one of the result, forward and backward."""
    rows, width, wide = 256, 128, dtype.itemsize
    x = torch.randn(rows, width, dtype=dtype, requires_grad=True)
    others = {rms_norm: [torch.ones(width, dtype=dtype, requires_grad=True)],
              rotary: [torch.ones(1, width, dtype=dtype)] * 2,
              gate: [torch.randn(rows, width, dtype=dtype, requires_grad=True)]}[function]
    with Traffic() as forward:
        result = function(x, *others)
    gradient = torch.ones_like(result)
    with Traffic() as backward:
        result.backward(gradient)
    for moved, own, more in zip((forward, backward), fused, counted(wide), strict=True):
        assert moved.bytes / (rows * width) == pytest.approx(own * wide + more, rel=0.03)


def test_eager_kernels_of_llama_take_their_bytes(tmp_path):
    """Two norms, queries with half as many keys, and a gate a layer; `ops` moves them again."""
    llama = {"layers": LAYERS, "width": WIDTH, "heads": HEADS, "kv_heads": HEADS // 2, "ffn": 3000,
             "gated": True, "norm": "rms", "vocabulary": 1000}
    forward = 32 * 2 * WIDTH + 16 * 1.5 * WIDTH + 4 * 3000
    backward = 90 * 2 * WIDTH + 24 * 1.5 * WIDTH + 8 * 3000
    for recompute, moved in (("none", forward + backward), ("ops", 2 * forward + backward)):
        eager, fused = (compute_s(tmp_path, model=llama, kernels=kernels, recompute=recompute)[0]
                        for kernels in ("eager", "fused"))
        assert eager - fused == pytest.approx(
            LAYERS * BATCH * TOKENS * moved / (0.8 * MEMORY) + 5 * LOSS_S, rel=1e-6)


def test_layer_norm_and_learned_positions_are_one_kernel_each_in_eager_mode(tmp_path):
    plain = MODEL | {"positions": 1024}
    eager, fused = (compute_s(tmp_path, model=plain, kernels=kernels)[0]
                    for kernels in ("eager", "fused"))
    assert eager - fused == pytest.approx(5 * LOSS_S)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_pytorchs_loss_moves_as_many_bytes_as_are_counted(dtype):
    rows, words = 64, 1024
    logits = torch.randn(rows, words, dtype=dtype, requires_grad=True)
    with Traffic() as forward:
        result = loss(logits, torch.zeros(rows, dtype=torch.int64))
    with Traffic() as backward:
        result.backward()
    for moved, counted in zip((forward, backward), EAGER_LOGIT[dtype.itemsize], strict=True):
        assert moved.bytes / (rows * words) == pytest.approx(counted, rel=0.01)
