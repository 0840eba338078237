"""Time in which a GPU's memory moves parameters, gradients and the optimizer's states.

Where a GPU's speed is its data sheet's, these take their bytes over the memory's rate, as other
kernels with few FLOPs do (`sim.step.kernels`). They grow with parameters and not with samples, so
they count where a GPU trains few samples between two gathers or updates. Each kernel reads what it
needs and writes what it gives once; an element of a gradient has ``w`` bytes:

| kernel | bytes | when |
|---|---|---|
| gathered parameters are laid out | 2 w | each gather of fsdp and hsdp |
| gradients are laid out to be scattered | 2 w | each scatter of fsdp and hsdp |
| gradients are added to those before | 3 w | eager micro-steps but the first, if none scatters |
| Adam | 28 | once a step, for the share that the GPU updates |

The first two are copies of PyTorch's fully_shard between its parameters and the buffers of its
collectives, on the stream that computes (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:
split_with_sizes_copy, chunk_cat). Its older FSDP of flat parameters has no first one, and one that
scatters in 32 bits writes more. The third is autograd's sum in place; fused kernels add within the
product that gives the gradients (Megatron's gradient_accumulation_fusion, its default), whose FLOPs
take longer than these bytes. Adam reads gradient, weight and two moments and writes the last three,
in 32 bits; with gradients of 16 bits it reads 2 bytes less, and writes a weight of 2 more. Sums
stand at the end of the step, outside a pipeline's bubble.

Confidence: which kernels there are is published, in the sources named; that each moves its bytes
once is assumed. Norms of gradients, clipping, zeroing, and DDP's own copies (``copy_per_element``)
are not counted, nor are tables, since few of their rows change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.step.gpu_memory import held_of, spread_over
from sim.step.kernels import moving_s

if TYPE_CHECKING:
    from sim.step.groups import Groups
    from sim.step.recipe import Recipe

COPIED = 2
"""Elements moved for one that is laid out elsewhere."""
ADDED = 3
"""The same for one that is added to another."""
ADAM_BYTES = 28


def laid_out_s(recipe: Recipe, elements: int) -> float:
    """Time to lay out the share of a unit's ``elements`` that a tensor group's GPU has."""
    return moving_s(recipe, COPIED * recipe.gradient_bytes * elements / recipe.layout.tensor)


def update_s(recipe: Recipe, groups: Groups) -> float:
    """Time of the sums of micro-steps and of the optimizer; pages have their own."""
    if recipe.paging is not None:
        return 0.0
    held = held_of(recipe, groups, recipe.model)
    held = held._replace(of_experts=held.of_experts
                         - recipe.model.of_tables // spread_over(recipe, groups))
    updated = held.whole if recipe.layout.shard == "none" else held.shared_out()
    added = _sums(recipe, groups) * held.whole
    return moving_s(recipe, ADDED * recipe.gradient_bytes * added + ADAM_BYTES * updated)


def _sums(recipe: Recipe, groups: Groups) -> int:
    """Micro-steps that add their gradients to those before by a kernel of its own."""
    if recipe.kernels == "fused":
        return 0
    layout = recipe.layout
    scatters = layout.shard == "zero2" or (layout.is_sharded and layout.pipeline == 1)
    return 0 if scatters and groups.size("replicas") > 1 else recipe.accumulation - 1
