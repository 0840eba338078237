"""Time in which the host launches the kernels of a pass: no pass is shorter on the GPU.

Where a framework launches kernels one by one (no CUDA graphs), the host takes some time for each
layer, whatever its size, and the GPU waits where its own work is shorter. That is so where tokens
are few and experts many: each expert that a GPU holds has matrix products of its own.

A layer of experts counts as one, as every layer of the model, and as `ROUTING` more: counts of
tokens to the host, permutation, the all-to-all there, order by expert, activation, second product,
order of arrival, the all-to-all back, permutation back, sum (NVIDIA/Megatron-LM,
megatron/core/transformer/moe/token_dispatcher.py and experts.py). Other layers of the model are as
many as modules of Megatron-LM, which runs query, key and value as one, and gate and up, but adds
rotary positions, activation and residuals. An autograd function runs backward for each; that it
takes the host as long is assumed. The count was made with sight of one published step
(bridge-qwen3-30b-b200 of `sim/validation/cases`), and nothing was fitted.

A pass takes the longer of the GPU's part and the host's. The host of experts that drop no token
waits for their counts in each layer besides, and cannot run ahead of the GPU; that is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.step.kernels import Moving

if TYPE_CHECKING:
    from sim.step.groups import Groups
    from sim.step.recipe import Recipe

ROUTING = 10
"""Modules of a mixture beside its router and its first product."""
PRODUCTS = (2, 4)
"""Matrix products of an expert, forward and backward; gate and up are one."""


def launching(recipe: Recipe, groups: Groups) -> Moving:
    """Seconds of the host for the kernels of a micro-step, forward and backward."""
    each, product = recipe.costs.launch_per_layer, recipe.costs.launch_per_product
    layer_s = 0.0 if each is None else each.value
    product_s = 0.0 if product is None else product.value
    mixtures = [layer.experts for layer in recipe.model.layers if layer.experts]
    layers_s = layer_s * (len(recipe.model.layers) + ROUTING * len(mixtures))
    experts = sum(-(-count // groups.expert) for count in mixtures)
    forward, backward = (layers_s + product_s * products * experts for products in PRODUCTS)
    if recipe.recompute in ("full", "ops"):
        backward += forward
    return Moving(forward, backward)
