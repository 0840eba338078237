"""Transformers by shape: arithmetic against closed forms, and what windows and experts change."""

from dataclasses import replace

import pytest

from sim.workloads.transformer import Experts, Latent, Patches, Transformer, build


def test_flops_follow_the_formula_of_megatron():
    """96 b s l h^2 (1 + s/(6 h) + V/(16 l h)) with recomputation, hence 72 without.

    Narayanan et al., SC 2021, section 5.1. Norms, which it leaves out, are a few in ten thousand.
    """
    layers, width, words, tokens = 24, 2304, 51200, 2048
    made = build(Transformer(layers, width, 24, words, head="tied", positions=2048), tokens)
    wanted = 72 * tokens * layers * width**2 * (
        1 + tokens / (6 * width) + words / (12 * layers * width))
    assert made.forward_flops + made.backward_flops == pytest.approx(wanted, rel=1e-3)


def test_grouped_heads_shrink_keys_and_values_but_no_scores():
    whole, grouped = (build(Transformer(1, 512, 8, 100, kv_heads=kv), 64) for kv in (8, 2))
    assert whole.parameters - grouped.parameters == 2 * 512 * (512 - 128)
    assert whole.forward_flops - grouped.forward_flops == 2 * 64 * 2 * 512 * (512 - 128)


def test_a_window_makes_attention_linear():
    def scores(tokens, **keys):
        made = build(Transformer(4, 64, 2, 100, **keys), tokens)
        return sum(layer.forward_flops for layer in made.layers if layer.name.endswith("scores"))

    assert scores(2048) == 4 * scores(1024)
    assert scores(2048, window=256) == 2 * scores(1024, window=256) == scores(2048) / 8
    assert scores(128, window=256) == scores(128)
    # Every second layer sees all.
    assert scores(2048, window=256, full_every=2) == (scores(2048) + scores(2048, window=256)) / 2


def test_experts_stand_where_the_shape_says():
    made = build(Transformer(6, 64, 2, 100, gated=True, norm="rms", experts=Experts(
        4, 2, 32, shared=16, every=2, first=2)), 10)
    with_experts = [layer for layer in made.layers if layer.expert_tensors]
    assert [layer.name for layer in with_experts] == ["layers.3.moe.experts",
                                                      "layers.5.moe.experts"]
    assert with_experts[0].parameters == 4 * 3 * 64 * 32
    assert with_experts[0].forward_flops == 2 * 3 * 64 * 32 * 10 * 2
    assert with_experts[0].alltoall_elements == 10 * 2 * 64
    assert sum(layer.parameters for layer in made.layers if ".shared." in layer.name) == (
        2 * 3 * 64 * 16)


def test_latent_attention_counts_its_two_widths():
    """Scores by the width with positions, context by that of values."""
    latent = Latent(kv_rank=16, nope=8, rope=4, value=6)
    made = build(Transformer(1, 64, 2, 100, latent=latent), 10)
    (scores,) = (layer for layer in made.layers if layer.name.endswith("scores"))
    assert scores.forward_flops == 2 * 10 * 10 * 2 * (8 + 4) + 2 * 10 * 10 * 2 * 6


def test_an_image_is_its_patches_and_a_class():
    made = build(Transformer(2, 64, 2, head="none", patches=Patches(32, 8, classes=10)), 0)
    assert made.sample == "image of 32x32"
    assert made.tokens == 0
    assert made.activations == (16 + 1) * 64
    first = made.layers[0]
    assert first.backward_flops == first.forward_flops == 2 * 16 * 3 * 64 * 64


def test_an_encoder_is_attended_to():
    made = build(Transformer(3, 64, 2, 100, encoder=2, norm="rms"), 10)
    crossed = [layer.name for layer in made.layers if ".cross." in layer.name]
    assert len({name.split(".cross")[0] for name in crossed}) == 3
    assert {layer.name.split(".")[0] for layer in made.layers} >= {"layers1", "layers2"}


def test_a_layer_that_predicts_ahead_has_the_published_weights():
    """DeepSeek-V3: 11.5 B of its own, 2.4 B at work with words and output (README_WEIGHTS.md)."""
    shape = Transformer(
        61, 7168, 128, 129280, ffn=18432, gated=True, norm="rms",
        experts=Experts(256, 8, 2048, shared=2048, first=3),
        latent=Latent(kv_rank=512, q_rank=1536, nope=128, rope=64, value=128))
    plain, ahead = (build(replace(shape, ahead=number), 1) for number in (0, 1))
    assert ahead.parameters - plain.parameters == pytest.approx(11.5e9, rel=0.015)
    words = 129280 * 7168
    at_work = (ahead.forward_flops - plain.forward_flops) / 2 + words
    assert at_work == pytest.approx(2.4e9, rel=0.06)
    assert ahead.blocks == plain.blocks + 1
    assert len({layer.name for layer in ahead.layers}) == len(ahead.layers)
