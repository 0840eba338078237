"""The layout of a model's states in pages.

All parameters lie one after another in one space of elements, each at a multiple of 16. Every kind
of state (parameters, gradients, masters, both moments) is such a space, cut into pages; so no page
but the last of a kind has a gap, whatever the tensors' sizes. The optimizer works on chunks: as
many elements as a page of float32 holds.

    kind         fp32   16 bits   read by
    parameters   4      2         operators, in a window (`cnet/store/page_pool.h`)
    gradients    4      2         written by the backward pass, in the window
    masters      -      4         updates; in fp32 the parameters are the masters
    means        4      4         updates
    squares      4      4         updates
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

PAGE_BYTES = 4 << 20
"""The size of Angel-PTM, VLDB 2023 (arXiv 2303.02868), section 4."""
ALIGN = 16
"""Elements; 64 bytes of float32, a line of the caches."""
WIDE = 4
"""Bytes of a float32."""


@dataclass(frozen=True)
class Layout:
    """Where each element of each kind lies."""

    sizes: tuple[int, ...]
    """Elements of each parameter."""
    element_bytes: int
    """Of parameters and gradients: 4 or 2."""
    page_bytes: int = PAGE_BYTES

    @cached_property
    def begins(self) -> tuple[int, ...]:
        """The first element of each parameter, and the end of the last."""
        begins = [0]
        for size in self.sizes:
            begins.append(-(-(begins[-1] + size) // ALIGN) * ALIGN)
        return tuple(begins)

    @property
    def chunk(self) -> int:
        """Elements of a chunk."""
        return self.page_bytes // WIDE

    @property
    def chunks(self) -> int:
        """Chunks of the space."""
        return -(-self.begins[-1] // self.chunk)

    @property
    def shown(self) -> int:
        """Pages of the parameters, and as many of the gradients."""
        return -(-self.begins[-1] * self.element_bytes // self.page_bytes)

    @property
    def states(self) -> int:
        """Kinds that only updates use."""
        return 2 if self.element_bytes == WIDE else 3

    @property
    def pages(self) -> int:
        """Pages of all kinds: parameters, gradients, then the others."""
        return 2 * self.shown + self.states * self.chunks

    def offset(self, parameter: int, *, gradient: bool = False) -> int:
        """Where a parameter or its gradient begins in the window, in bytes."""
        return (self.begins[parameter] * self.element_bytes
                + gradient * self.shown * self.page_bytes)

    def pages_of(self, parameter: int, *, gradient: bool = False) -> range:
        """The pages of a parameter or its gradient."""
        begin = self.offset(parameter, gradient=gradient)
        end = begin + max(self.sizes[parameter], 1) * self.element_bytes
        return range(begin // self.page_bytes, -(-end // self.page_bytes))

    def chunks_of(self, parameter: int) -> range:
        """The chunks that a parameter has elements in."""
        end = self.begins[parameter] + self.sizes[parameter]
        return range(self.begins[parameter] // self.chunk, -(-end // self.chunk))

    def page_of_chunk(self, chunk: int) -> int:
        """The page of the parameters that a chunk lies in."""
        return chunk * self.chunk * self.element_bytes // self.page_bytes

    def states_of(self, chunk: int) -> list[int]:
        """The pages that only updates use: masters, if any, means, squares."""
        return [2 * self.shown + kind * self.chunks + chunk for kind in range(self.states)]

    def pages_to_update(self, chunk: int) -> tuple[int, ...]:
        """All pages that an update of a chunk reads or writes."""
        page = self.page_of_chunk(chunk)
        return (page, self.shown + page, *self.states_of(chunk))
