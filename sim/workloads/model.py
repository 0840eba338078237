"""A network as a list of layers, with the sums that a training step asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from sim.workloads.layers import SCORES

if TYPE_CHECKING:
    from sim.workloads.layers import Layer, Tensor
    from sim.workloads.transformer import Transformer


@dataclass(frozen=True)
class Model:
    """A network as a list of layers in forward order; all counts are for one sample."""

    name: str
    layers: tuple[Layer, ...]
    sample: str
    """Name of one sample, e.g. ``image of 224x224`` or ``sequence of 128 tokens``."""
    source: str
    """Source of the shapes."""
    activations: int = 0
    """Elements that go from one block to the next for one sample; 0 where blocks differ."""
    tokens: int = 0
    """Tokens of a sample; 0 where a sample is no text."""
    shape: Transformer | None = None
    """Its numbers, where it is a transformer whose activations can be counted."""

    @cached_property
    def is_measured(self) -> bool:
        """Whether layers have times of their own."""
        return any(layer.forward_s or layer.backward_s for layer in self.layers)

    @cached_property
    def parameters(self) -> int:
        """Number of learned elements, all experts included."""
        return self.replicated + self.spread

    @cached_property
    def replicated(self) -> int:
        """Learned elements that every GPU holds, where nothing splits them."""
        return sum(tensor.elements for layer in self.layers for tensor in layer.tensors)

    @cached_property
    def spread(self) -> int:
        """Learned elements of experts and tables, all of them counted."""
        return sum(tensor.elements for layer in self.layers for tensor in layer.expert_tensors)

    @cached_property
    def of_tables(self) -> int:
        """Elements of tables among them."""
        return sum(tensor.elements for layer in self.layers if layer.lookups
                   for tensor in layer.expert_tensors)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Replicated tensors in forward order: those whose gradients data parallelism averages."""
        return tuple(tensor for layer in self.layers for tensor in layer.tensors)

    @cached_property
    def forward_flops(self) -> int:
        """FLOPs of the forward pass."""
        return sum(layer.forward_flops for layer in self.layers)

    @cached_property
    def backward_flops(self) -> int:
        """FLOPs of the backward pass."""
        return sum(layer.backward_flops for layer in self.layers)

    @cached_property
    def is_convolutional(self) -> bool:
        """Whether convolutions make up most of its FLOPs."""
        of_maps = sum(layer.forward_flops for layer in self.layers if layer.maps)
        return 2 * of_maps > self.forward_flops

    @cached_property
    def blocks(self) -> int:
        """Number of blocks."""
        return len({block_of(layer) for layer in self.layers} - {""})

    @cached_property
    def every_second(self) -> frozenset[str]:
        """Names of every second matrix product of each block, attention's scores not counted."""
        at: dict[str, int] = {}
        found = set()
        for layer in self.layers:
            block = block_of(layer)
            if block and layer.forward_flops and not layer.name.endswith(("norm", SCORES)):
                at[block] = at.get(block, 0) + 1
                if at[block] % 2 == 0:
                    found.add(layer.name)
        return frozenset(found)

    @cached_property
    def mixtures(self) -> int:
        """Number of layers of experts or tables."""
        return sum(1 for layer in self.layers if layer.expert_tensors)

    @cached_property
    def splits(self) -> dict[tuple[int, int, bool], tuple[Model, ...]]:
        """Stages by their number and the pieces of each, kept by `sim.step.stages`."""
        return {}


_BLOCK = re.compile(r"(?:layers?\d?|h)\.\d+(?=\.)")


def block_of(layer: Layer) -> str:
    """Name of the block of the network that holds a layer; empty outside of all."""
    return layer.block or _named(layer.name)


@lru_cache(maxsize=1 << 16)
def _named(layer: str) -> str:
    match = _BLOCK.match(layer)
    return match[0] if match else ""
