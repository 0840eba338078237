"""Time of kernels that memory bounds: norms, activations, dropout, softmax, sums, and the loss.

Where a GPU's speed is its data sheet's, matrix products take their FLOPs over the rate that they
reach, and all else the bytes that it reads and writes over the memory's. Those are counted kernel
by kernel for GPT's block and held as a share of what the block keeps (`sim.step.gpu_memory`), so
that they follow any widths. Of 34 s b h bytes that it keeps, the kernels beside attention move 38
in the forward pass: 4 for each norm, 7 for each dropout with its residual, 16 for GELU; and half as
much again in the backward pass, which reads what was kept as well. Of 5 bytes of a score, unfused
attention moves 13 there and 19 back: scores written, softmax, dropout, and the product with values.
Fused attention (Dao et al. 2022) moves none of these.

PyTorch without torch.compile (``kernels: eager``) runs a kernel for each operation that Python
names. Its layer norm and GELU are one kernel each, but the parts of Llama's block are not: RMSNorm
is six (to 32 bits, square, mean, product, back, weight), which move 36 bytes an element where one
kernel moves 4; rotary positions five (two products, negation, concatenation, sum), 20 bytes for 4;
a gate two, 10 bytes for 6. Their backward passes move 96, 28 and 18 for 6, 4 and 10. These bytes
are counted of PyTorch 2.13's own operations, in 16 bits; in 32 bits RMSNorm needs no casts. Where
torch.compile saves 23.5 us a token on Llama 3.1 8B (pytorch/torchtitan,
benchmarks/llama3_h100_202412_torchtitan.md), they say 30 at that GPU's 2.4 TB/s.

The loss over a vocabulary reads logits in the forward pass, reads them again in the backward one
and writes their gradients. In eager mode it casts them to 32 bits and runs log-softmax in these: 14
bytes a logit of 16 bits forward and 22 backward, where a gradient of zeros is filled in first; 8
and 16 of 32 bits. These are counted of PyTorch's cross entropy in the same way.

A mixture of experts moves the copies of its tokens besides, which its matrix products do not: they
come in the order of ranks, are laid out in that of experts, and go back the same way, so that each
element of a copy is read twice and written twice in either pass; the router's side reads a token
once and writes the sum of its copies once. That is what DeepEP and HybridEP leave to do, which
permute on their way; Megatron-LM's "alltoall" dispatcher permutes before it sends as well, 6
elements for 4 (NVIDIA/Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py). Published;
4 was chosen when both counts had been seen on the rows of DeepEP in `sim/validation/cases`.
In fp8 the inputs of experts' products, and the gradients of their outputs, are cast by kernels of
their own: 2 bytes are read and 2 written, one for the product and one, transposed, for the gradient
of the weights (NVIDIA/TransformerEngine, transformer_engine/pytorch/module/grouped_linear.py).
Other layers cast within the kernels of norms and activations. Published.

In fp8 only the linear layers of blocks run at its rate; products of queries, keys and values, and
the output layer, stay in 16 bits (`widened`), as in NVIDIA's recipes by default
(NVIDIA-NeMo/Megatron-Bridge, docs/performance-guide.md, "Low Precision Training"). Published.

A traced model says itself what each layer keeps, and the same shares hold of it: assumed, for
normalisations, activations and sums of other networks as well. A network of convolutions says what
it moves instead (`sim.workloads.layers`), with a kernel for each operation: ResNet-50 moves 3.3 and
4.9 elements for one that it keeps, VGG16 2.4 and 3.6.

Where a speed of the whole model is given (``effective``, ``samples_per_s``), it holds for all, and
so do times that were measured.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from sim.step.gpu_memory import block_bytes, count_logits, kept_bytes, tokens_of
from sim.workloads import layers as nn
from sim.workloads.model import block_of

if TYPE_CHECKING:
    from sim.step.recipe import Recipe
    from sim.workloads.layers import Layer

REACHED = 0.8
"""Share of the memory's rate that such kernels reach: assumed, 0.7 to 0.9 (a copy of 4 GiB on an
H200 0.91; short kernels less)."""
KEPT = (38 / 34, 57 / 34)
"""Bytes moved forward and backward for one that a block keeps, beside scores."""
SCORES = (13 / 5, 19 / 5)
"""The same of scores."""
RMS_NORM = {2: (32, 90), 4: (20, 84)}
"""Further bytes an element, forward and backward, that RMSNorm moves in eager mode, by the bytes
of an element."""
ROTARY = (8, 12)
"""The same of rotary positions, in elements."""
GATE = (2, 4)
"""The same of a gate."""
LOGIT = (1, 2)
"""Elements that a fused loss moves for a logit, forward and backward."""
EAGER_LOGIT = {2: (14, 22), 4: (8, 16)}
"""Bytes a logit in eager mode, by the bytes of an element."""


PERMUTED = (4, 2)
"""Elements that a mixture moves each way for one of a token's copies, and for one of the token."""
QUANTISED = 4
"""Bytes moved for an element that is cast to fp8."""


class Moving(NamedTuple):
    """Seconds in each pass."""

    forward_s: float
    backward_s: float


def widened(recipe: Recipe, layer: Layer) -> float:
    """Time of a layer's products over that at the rate of the precision."""
    narrow = block_of(layer) and not layer.name.endswith(nn.SCORES)
    return 1.0 if narrow else recipe.left_wide


def moving_s(recipe: Recipe, nbytes: float) -> float:
    """Time of ``nbytes``; none beside a speed of the whole model, or times that were measured."""
    return 0.0 if recipe.model.is_measured else nbytes / (REACHED * recipe.moved)


def moving(recipe: Recipe) -> dict[str, Moving]:
    """Time that memory adds to each block and to the loss, by the name of its first layer."""
    if math.isinf(recipe.moved) or recipe.model.is_measured:
        return {}
    if recipe.model.is_convolutional:
        return _of_convolutional(recipe)
    if recipe.model.shape is None:
        return _of_traced(recipe)
    kinds = {False, recipe.model.shape.experts is not None}
    each = {experts: _of_block(recipe, experts=experts) for experts in kinds}
    found = {}
    for block, layers in groupby(recipe.model.layers, block_of):
        some = list(layers)
        if block:
            found[some[0].name] = each[any(layer.expert_tensors for layer in some)]
        elif count_logits(some):
            found[some[0].name] = _of_loss(recipe)
    return found


def _of_loss(recipe: Recipe) -> Moving:
    assert recipe.model.shape is not None
    logits = (recipe.batch * tokens_of(recipe) * recipe.model.shape.vocabulary
              / recipe.layout.tensor)
    wide = recipe.element_bytes
    each = EAGER_LOGIT[wide] if recipe.kernels == "eager" else [wide * way for way in LOGIT]
    return Moving(*(moving_s(recipe, nbytes * logits) for nbytes in each))


def _of_block(recipe: Recipe, *, experts: bool) -> Moving:
    fused = _of_bytes(recipe, *block_bytes(recipe, experts=experts, all_scores=True))
    beside = []
    if recipe.kernels == "eager":
        beside.append(eager_bytes(recipe, experts=experts))
    if experts:
        beside.append(routed_bytes(recipe))
    forward, backward = (moving_s(recipe, sum(each[way] for each in beside)) for way in (0, 1))
    if recipe.recompute in ("full", "ops"):
        backward += forward
    return Moving(fused.forward_s + forward, fused.backward_s + backward)


def routed_bytes(recipe: Recipe) -> tuple[float, float]:
    """Bytes that a mixture moves in a micro-step beside those of `KEPT`, forward and backward."""
    shape, layout, wide = recipe.model.shape, recipe.layout, recipe.element_bytes
    assert shape is not None
    mix = shape.experts
    assert mix is not None
    copies, own = PERMUTED
    inner = mix.top_k * mix.ffn
    casts = QUANTISED * (recipe.precision == "fp8")
    forward, backward = (
        wide * shape.width * ((copies - KEPT[way]) * mix.top_k + own)
        + casts * (mix.top_k * shape.width + (1 + way * shape.gated) * inner) for way in (0, 1))
    # A tensor group shares out the copies.
    samples = recipe.batch * tokens_of(recipe) / layout.tensor
    return samples * forward, samples * backward


def eager_bytes(recipe: Recipe, *, experts: bool) -> tuple[float, float]:
    """Bytes that a block moves beyond fused kernels in a micro-step, forward and backward."""
    shape, layout, wide = recipe.model.shape, recipe.layout, recipe.element_bytes
    assert shape is not None
    heads = (shape.heads + shape.kv) * shape.head_size
    if shape.latent is not None:
        heads = (shape.heads + 1) * shape.latent.rope
    inner, mix = shape.inner, shape.experts
    if experts and mix is not None:
        inner = mix.top_k * mix.ffn + mix.shared
    rms = shape.norm == "rms"
    normed = rms * (shape.norms * shape.width / (layout.tensor if layout.sequence else 1)
                    + shape.qk_norm * heads / layout.tensor)
    turned = (shape.is_rotary * heads) / layout.tensor
    gated = shape.gated * inner / layout.tensor
    samples = recipe.batch * tokens_of(recipe)
    forward, backward = (samples * (RMS_NORM[wide][way] * normed + ROTARY[way] * wide * turned
                                    + GATE[way] * wide * gated) for way in (0, 1))
    return forward, backward


def _of_traced(recipe: Recipe) -> dict[str, Moving]:
    """Traffic of memory by layers of a traced model, by the first one of each row."""
    found = {}
    for block, layers in groupby(recipe.model.layers, block_of):
        some = list(layers)
        kept, scores = kept_bytes(recipe, some, all_scores=True)
        if kept or scores:
            found[some[0].name] = _of_bytes(recipe, kept, scores, again=block != "")
    return found


def _of_convolutional(recipe: Recipe) -> dict[str, Moving]:
    """Traffic beside convolutions, by the first layer of each row."""
    found = {}
    each = recipe.batch * recipe.element_bytes
    for block, layers in groupby(recipe.model.layers, block_of):
        some = list(layers)
        forward, backward = (moving_s(recipe, each * sum(moved)) for moved in zip(
            *((layer.moved_forward, layer.moved_backward) for layer in some), strict=True))
        again = forward if block and recipe.recompute in ("full", "ops") else 0.0
        found[some[0].name] = Moving(forward, backward + again)
    return found


def _of_bytes(recipe: Recipe, kept: int, scores: int, *, again: bool = True) -> Moving:
    """Times for ``kept`` bytes; ``again``: of what full recomputation computes again."""
    rate = REACHED * recipe.moved
    forward, backward = (KEPT[way] * kept + SCORES[way] * scores for way in (0, 1))
    if recipe.recompute in ("full", "ops") and again:
        backward += forward
    elif recipe.recompute == "selective":
        backward += SCORES[0] * scores
    return Moving(forward / rate, backward / rate)
