"""A call of a module, taken apart: its tensors, what else it has, and what torch guards.

Two calls have one key if only sizes and floats differ between them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Iterable

Dimension = tuple[int, int]
"""A leaf's number and a dimension of it."""


def _described(leaf: Any) -> Any:
    if torch.is_tensor(leaf):
        return (str(leaf.dtype), str(leaf.device), leaf.dim(), leaf.requires_grad)
    return "float" if type(leaf) is float else repr(leaf)


@dataclass(frozen=True)
class Call:
    """Leaves of the arguments, and their places."""

    leaves: list[Any]
    places: Any

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Take arguments apart."""
        return cls(*pytree.tree_flatten((args, kwargs)))

    @cached_property
    def autocast(self) -> tuple[str, torch.dtype, bool]:
        """Device, half precision, and whether it is on."""
        device = next((leaf.device.type for leaf in self.leaves if torch.is_tensor(leaf)), "cpu")
        return device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)

    @cached_property
    def key(self) -> str:
        """Properties that decide on the compiled code, without sizes and floats."""
        device, dtype, on = self.autocast
        return repr((str(self.places), [_described(leaf) for leaf in self.leaves],
                     torch.is_grad_enabled(), device, on and str(dtype)))

    @property
    def sizes(self) -> dict[Dimension, int]:
        """Every dimension's size."""
        return {(leaf, dimension): size for leaf, tensor in enumerate(self.leaves)
                if torch.is_tensor(tensor) for dimension, size in enumerate(tensor.shape)}

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Put the arguments together again."""
        args, kwargs = pytree.tree_unflatten(self.leaves, self.places)
        return args, kwargs

    @property
    def floats(self) -> dict[int, float]:
        """Floats by the number of their leaf."""
        return {number: leaf for number, leaf in enumerate(self.leaves) if type(leaf) is float}

    def lifted(self, floats: Iterable[int]) -> Call:
        """Make floats tensors, so that torch guards their values no more."""
        leaves = list(self.leaves)
        for number in floats:
            leaves[number] = torch.tensor(leaves[number], dtype=torch.float64)
        return replace(self, leaves=leaves)

    def copied(self) -> Call:
        """Copy the tensors: the caller may change its own."""
        return replace(self, leaves=[
            leaf.detach().clone().requires_grad_(leaf.requires_grad) if torch.is_tensor(leaf)
            else leaf for leaf in self.leaves])

    def padded(self, dimensions: Iterable[Dimension], size: int) -> Call:
        """Pad dimensions with zeros up to a size, or cut them down to it."""
        leaves = list(self.leaves)
        for leaf, dimension in dimensions:
            tensor = leaves[leaf]
            short = size - tensor.shape[dimension]
            if short:
                pads = [0, 0] * (tensor.dim() - 1 - dimension) + [0, short]
                leaves[leaf] = torch.nn.functional.pad(tensor, pads)
        return replace(self, leaves=leaves)


def linked(sizes: list[dict[Dimension, int]]) -> list[tuple[Dimension, ...]]:
    """Group the dimensions that varied between calls by those that were always equal."""
    groups: dict[tuple[int, ...], list[Dimension]] = {}
    for dimension in sizes[0]:
        seen = tuple(call[dimension] for call in sizes)
        if len(set(seen)) > 1:
            groups.setdefault(seen, []).append(dimension)
    return [tuple(group) for group in groups.values()]


def sliced(result: Any, dimensions: Iterable[Dimension], size: int) -> Any:
    """Cut the padding off a result."""
    leaves, places = pytree.tree_flatten(result)
    for leaf, dimension in dimensions:
        leaves[leaf] = leaves[leaf].narrow(dimension, 0, size)
    return pytree.tree_unflatten(leaves, places)


def grown(small: Any, large: Any, sizes: tuple[int, int]) -> list[Dimension]:
    """Give the dimensions of a result that have one size, and the other in a larger call."""
    pairs = zip(pytree.tree_leaves(small), pytree.tree_leaves(large), strict=True)
    return [(leaf, dimension) for leaf, (one, other) in enumerate(pairs) if torch.is_tensor(one)
            for dimension, both in enumerate(zip(one.shape, other.shape, strict=True))
            if both == sizes]
