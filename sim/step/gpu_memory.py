"""Memory of a GPU in training, counted: weights, gradients, optimizer, activations and buffers.

`count` takes the fullest stage of a pipeline. Bytes of a parameter are those of Adam (Rajbhandari
et al., SC 2020, section 3.1): in 16 bits 2 for the weight, 2 for its gradient and 12 for the
optimizer's own weight and two moments; in 32 bits 4, 4 and 8. Gradients that are added up in 32
bits beside products in 16 take 4. Tensor parallelism, experts and shards divide them, but in a
pipeline fsdp and hsdp keep weights and gradients whole (`sim.step.step_graph`).

Activations are those that a block keeps for its backward pass (Korthikanti et al. 2022, sections 4
and 5): for s tokens, b samples, width h and a heads s b h (34 + 5 a s/h) bytes in GPT's layout,
which the terms below give for any width of heads, of keys and of the network inside. A tensor
group splits all but 10 s b h of it, with sequence parallelism those as well. Attention that keeps
no scores (Dao et al. 2022), or computes them again, saves the second term; full recomputation all
but a block's input, and needs one block whole at a time. A gated network keeps three vectors of its
inner width (gate, up, product). The logits are kept in 4 bytes each (ibid., section 4.3).

In 1F1B stage i, counted from 0, keeps p - i micro-steps, and where it has v pieces
(v + 1) p - 1 - 2 i of these: the forward passes before its first backward pass, and one
(Korthikanti, section 4.2.3, of the first stage; Megatron-LM, pipeline_parallel/schedules.py). Where
gradients of weights come later, each stage keeps p, whatever its pieces (Qi et al., ICLR 2024,
sections 2 and 6), and a piece more in DualPipeV (deepseek-ai/DualPipe, README.md), which counts a
micro-step whole until then. Where the tokens of experts are sent beside another micro-step, that is
one more (DeepSeek-V3's report, arXiv 2412.19437, table 2), which DualPipeV has.

Buffers: the largest unit three times (two gathered ones and a gradient) where parameters are
gathered; the gradients once more where DDP copies them into buckets (PyTorch's
``gradient_as_bucket_view`` is false by default); and `RESERVED`. Gaps that an allocator leaves
between blocks do not count.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from sim.records.results import Memory
from sim.step.groups import expert_shards
from sim.step.stages import split_stages
from sim.workloads.model import block_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sim.step.groups import Groups
    from sim.step.recipe import Recipe
    from sim.workloads.layers import Layer
    from sim.workloads.model import Model

RESERVED = 1 << 30
"""Bytes for CUDA's context, libraries and NCCL: assumed, 0.5 to 1.5 GiB on such GPUs."""
UNIT_COPIES = 3


class Held(NamedTuple):
    """Parameters of a stage that a GPU holds, and the ranks that may share out their states."""

    own: int
    of_experts: int
    copies: int
    expert_copies: int

    @property
    def whole(self) -> int:
        """All of them."""
        return self.own + self.of_experts

    def shared_out(self, each: int = 1) -> int:
        """A rank's share of ``each`` for each parameter."""
        return (-(-each * self.own // self.copies)
                + -(-each * self.of_experts // self.expert_copies))


def held_of(recipe: Recipe, groups: Groups, stage: Model) -> Held:
    """Memory of a stage on a GPU before anything is shared out."""
    layout = recipe.layout
    copies = groups.size("shard" if layout.shard == "hsdp" else "replicas")
    expert_copies = copies if layout.gathers_experts else groups.size(expert_shards(layout))
    return Held(-(-stage.replicated // layout.tensor), -(-stage.spread // spread_over(
        recipe, groups)), copies, expert_copies)


def spread_over(recipe: Recipe, groups: Groups) -> int:
    """Ranks over which experts and tables are spread."""
    return recipe.layout.tensor if recipe.layout.gathers_experts else groups.spread


def count(recipe: Recipe, groups: Groups) -> Memory:
    """Memory of a whole model's step on the fullest GPU; ``recipe`` has the whole model."""
    layout = recipe.layout
    stages = (recipe.model,) if layout.pipeline == 1 else split_stages(recipe.model, layout)
    return max((_of_stage(recipe, groups, stage, number) for number, stage in enumerate(stages)),
               key=lambda memory: memory.total)


def _of_stage(recipe: Recipe, groups: Groups, stage: Model, number: int) -> Memory:
    layout, wide = recipe.layout, recipe.element_bytes
    held = held_of(recipe, groups, stage)
    state = 12 if wide == 2 else 8
    weights = wide * held.whole
    # Of tables only rows that were looked up have gradients.
    gradients = recipe.gradient_bytes * (
        held.whole - (-(-stage.of_tables // spread_over(recipe, groups))))
    optimizer = state * held.whole if layout.shard == "none" else held.shared_out(state)
    drops_gathered = layout.is_sharded and layout.pipeline == 1
    if layout.shard == "zero2" or drops_gathered:
        gradients = held.shared_out(recipe.gradient_bytes)
    buffers = RESERVED
    if drops_gathered:
        weights = held.shared_out(wide)
        buffers += UNIT_COPIES * wide * _largest_unit(recipe, stage) // layout.tensor
    if recipe.fusion == "size" and layout.shard == "none" and held.copies > 1:
        buffers += gradients
    return Memory(weights, gradients, optimizer, _activations(recipe, stage, number), buffers)


def _largest_unit(recipe: Recipe, stage: Model) -> int:
    """Elements of the largest unit, before a tensor group splits them."""
    spread = recipe.layout.expert or 1
    return max(sum(sum(each.elements for each in layer.tensors)
                   + sum(each.elements for each in layer.expert_tensors) // spread
                   for layer in some)
               for _, some in groupby(stage.layers, block_of))


def _activations(recipe: Recipe, stage: Model, number: int) -> int | None:
    """Bytes that a stage keeps when it is fullest."""
    shape, layout, wide = recipe.model.shape, recipe.layout, recipe.element_bytes
    if shape is None:
        return _traced_activations(recipe, stage, number)
    samples = recipe.batch * tokens_of(recipe)
    blocks, mixtures = stage.blocks, stage.mixtures
    whole = sum(block_bytes(recipe, experts=False)) * (blocks - mixtures) + (
        sum(block_bytes(recipe, experts=True)) * mixtures)
    kept = whole
    if recipe.recompute == "full":
        each = wide * samples * shape.width // (layout.tensor if layout.sequence else 1)
        kept = blocks * each
    elif recipe.recompute == "ops":  # of two products one
        kept = whole // 2
    kept = round(kept * micro_steps_kept(recipe, number))
    if recipe.recompute in ("full", "ops"):
        kept += whole // max(blocks, 1)
    return kept + count_logits(stage.layers) * 4 * samples * shape.vocabulary // layout.tensor


def count_logits(layers: Iterable[Layer]) -> int:
    """Number of output layers over a vocabulary among them."""
    return sum(layer.name.split(".")[-1] in ("lm_head", "head") for layer in layers)


def _traced_activations(recipe: Recipe, stage: Model, number: int) -> int | None:
    """The same of a traced model; None where nobody counted."""
    if not any(layer.kept for layer in recipe.model.layers):
        return None
    layout, largest, kept = recipe.layout, 0, 0
    between = recipe.batch * recipe.element_bytes * recipe.model.activations
    for block, some in groupby(stage.layers, block_of):
        whole = sum(kept_bytes(recipe, list(some)))
        if block and recipe.recompute == "full":
            if not between:  # blocks differ, and nobody counted what goes into each
                return None
            largest, whole = max(largest, whole), between
        kept += whole // 2 if block and recipe.recompute == "ops" else whole
    split = layout.tensor * layout.context
    return round(kept * micro_steps_kept(recipe, number) / split) + largest // split


def kept_bytes(recipe: Recipe, layers: list[Layer], *, all_scores: bool = False) -> tuple[int, int]:
    """Bytes that layers of a traced model keep of one micro-step, and those of scores among them.

    With ``all_scores`` those count that are computed again as well.
    """
    wide = recipe.element_bytes
    keeps = not recipe.flash and (recipe.recompute == "none" or all_scores)
    scores = sum(layer.scores for layer in layers) if keeps else 0
    return (recipe.batch * sum(wide * layer.kept + layer.masks for layer in layers),
            recipe.batch * wide * scores)


def tokens_of(recipe: Recipe) -> int:
    """Tokens of a sample that a rank has."""
    model, shape = recipe.model, recipe.model.shape
    assert shape is not None
    return -(-(model.tokens or shape.tokens(0)) // recipe.layout.context)


def micro_steps_kept(recipe: Recipe, number: int) -> float:
    """Count the micro-steps in flight at stage ``number``: it keeps their activations."""
    layout, kept = recipe.layout, float(recipe.layout.pipeline)
    if layout.schedule == "dualpipe-v":
        return min(kept + 1 / 2, recipe.accumulation)
    if layout.schedule == "1f1b" and layout.interleave > 1:
        kept += (kept - 1 - 2 * number) / layout.interleave
    elif layout.schedule == "1f1b":
        kept -= number
    beside = 1 if recipe.expert_overlap == "micro-steps" else 0
    return min(kept + beside, recipe.accumulation)


def block_bytes(recipe: Recipe, *, experts: bool, all_scores: bool = False) -> tuple[int, int]:
    """Bytes that a block keeps of one micro-step, without attention's scores, and theirs.

    With ``all_scores`` those count that are computed again as well.
    """
    shape, layout, wide = recipe.model.shape, recipe.layout, recipe.element_bytes
    assert shape is not None
    width, tokens = shape.width, tokens_of(recipe)
    # Inputs of norms, of attention and of the network; masks of dropout have a byte.
    whole = wide * (shape.norms + 2) * width + 2 * shape.dropout * width
    inner, mix = shape.inner, shape.experts
    if experts and mix is not None:
        inner = mix.top_k * mix.ffn + mix.shared
        whole += wide * mix.top_k * width  # what arrives at the experts
    split = wide * (2 * shape.heads * shape.head_size + shape.key_elements
                    + (3 if shape.gated else 2) * inner)
    scores = 0
    if not recipe.flash and (recipe.recompute == "none" or all_scores):
        seen = recipe.model.tokens or tokens
        scores = shape.heads * seen * (wide + shape.dropout * (wide + 1))
    each = split // layout.tensor + whole // (layout.tensor if layout.sequence else 1)
    samples = recipe.batch * tokens
    return samples * each, samples * scores // layout.tensor
