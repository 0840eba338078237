"""Parameters and gradients at addresses for good, where their pages are shown: memory of a CPU.

`harp.angelptm.accelerator_pages.Wholes` has the same calls for devices: their memory cannot be
mapped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from harp._cnet import ffi

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from harp.angelptm.cache import Cache


class Window:
    """The tensors of parameters and gradients."""

    def __init__(self, cache: Cache, dtype: torch.dtype) -> None:
        self._cache, self._dtype = cache, dtype
        self._gradients: list[torch.Tensor] = []

    @staticmethod
    def key(tensor: torch.Tensor) -> int:
        """Say which memory a tensor has; views have their parameter's."""
        found: int = tensor.untyped_storage().data_ptr()
        return found

    def make(self, shape: torch.Size) -> torch.Tensor:
        """Make the next parameter."""
        number = len(self._gradients)
        self._gradients.append(self._view(number, shape, gradient=True))
        return self._view(number, shape, gradient=False)

    def lend(self, numbers: Iterable[int]) -> None:
        """Have memory for a view of these parameters."""

    def have(self, numbers: Iterable[int]) -> None:
        """Have these parameters for an operator; their pages are on the device."""

    def put_back(self, numbers: Iterable[int]) -> None:
        """Write parameters, which an operator has changed, to their pages."""

    def keep_gradient(self, number: int, gradient: torch.Tensor, sums: Container[int]) -> None:
        """Write a gradient to its pages, which are on the device, or add it to these sums."""
        own, parts = self._gradients[number], list(self._cache.layout.parts_of(number))
        added = {page in sums for page, *_ in parts}
        if len(added) == 1:
            (own.add_ if added.pop() else own.copy_)(gradient)
            return
        own, gradient, width = own.view(-1), gradient.reshape(-1), own.element_size()
        for page, _, begin, end in parts:
            part = slice(begin // width, end // width)
            (own[part].add_ if page in sums else own[part].copy_)(gradient[part])

    def norm(self, number: int) -> torch.Tensor:
        """Give the norm of a gradient in its pages."""
        return torch.linalg.vector_norm(self._gradients[number], dtype=torch.float32)

    def _view(self, number: int, shape: torch.Size, *, gradient: bool) -> torch.Tensor:
        address = self._cache.window + self._cache.layout.offset(number, gradient=gradient)
        elements = shape.numel()
        return tensor_at(address, max(elements, 1), self._dtype)[:elements].view(shape)


def tensor_at(address: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Give memory as a flat tensor."""
    memory = ffi.buffer(ffi.cast("uint8_t *", address), elements * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype)
