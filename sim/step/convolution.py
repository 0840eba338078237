"""Time of convolutions where a GPU's speed is its data sheet's.

A convolution takes its FLOPs over the rate that matrix products reach, or as long as memory needs
for its maps, whichever is longer: a roofline. Each product reads one of input and output (or their
gradients) and writes or reads the other; the forward pass has one product, the backward one two.

- In fp32 without matrix units cuDNN takes Winograd's algorithm for 3 x 3 at stride 1: F(2x2, 3x3)
  multiplies 16 times where the direct one does 36 times (Lavin and Gray, "Fast Algorithms for
  Convolutional Neural Networks", CVPR 2016). Published; that it is taken for each is assumed.
- Matrix units want maps with channels last. PyTorch has them first unless a script asks for
  ``channels_last``, and cuDNN then transposes what goes into a product and what comes out: each is
  read and written once more (NVIDIA, "Convolutional Layers User's Guide", Tensor Layouts).
  Published; that it happens around every product is assumed.

Where a speed of the whole model is given, it holds for all of this.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sim.step.kernels import moving_s, widened

if TYPE_CHECKING:
    from sim.step.recipe import Recipe
    from sim.workloads.layers import Layer

WINOGRAD = 36 / 16
TRANSPOSED = 2
"""Times that a map is moved to be transposed: read and written."""


def convolution_s(recipe: Recipe, layer: Layer, flops: float, rate: float) -> float:
    """Seconds of a convolution's products of ``flops`` for a sample, at ``rate`` FLOP/s."""
    products_s = recipe.batch * widened(recipe, layer) * flops / rate
    if math.isinf(recipe.moved) or not layer.forward_flops:
        return products_s
    maps_s = moving_s(recipe, recipe.batch * recipe.element_bytes * layer.maps
                      * flops / layer.forward_flops)
    if recipe.precision == "fp32":
        return max(products_s / (WINOGRAD if layer.winograd else 1), maps_s)
    return max(products_s, maps_s) + TRANSPOSED * maps_s * (not recipe.channels_last)
