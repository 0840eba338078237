"""The layout of a model's states in pages.

All parameters lie one after another in one space of elements, each at a multiple of 16. Every kind
of state (parameters, gradients, masters, both moments) is such a space, cut into pages; so no page
but the last of a kind has a gap, whatever the tensors' sizes. The optimizer works on chunks: as
many elements as a page of float32 holds. Tiers are filled in the order of pages, and the states of
a chunk that only updates use lie side by side: room to spare on a device has whole chunks, which
are then updated there.

    kind         fp32   16 bits   read by
    parameters   4      2         operators, in a window (`cnet/store/page_pool.h`)
    gradients    4      2         written by the backward pass, in the window
    masters      -      4         updates; in fp32 the parameters are the masters
    means        4      4         updates
    squares      4      4         updates

Of several ranks each owns one part of every page, the part of its number. The window is the same at
all of them; what a rank owns lies close together in a space of its own, which has all five kinds:

    window      | page 0: part 0, part 1 | page 1: part 0, part 1 | ...   gathered and reduced
    own, rank 1 | part 1 of page 0, part 1 of page 1, ...             |   kept and updated

So a page of own parts comes from as many pages of the window as there are ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE_BYTES = 4 << 20
"""The size of Angel-PTM, VLDB 2023 (arXiv 2303.02868), section 4."""
ALIGN = 16
"""Elements; 64 bytes of float32, a line of the caches."""
WIDE = 4
"""Bytes of a float32."""


@dataclass(frozen=True)
class Layout:
    """Places of the elements of each kind."""

    sizes: tuple[int, ...]
    """Elements of each parameter."""
    element_bytes: int
    """Of parameters and gradients: 4 or 2."""
    page_bytes: int = PAGE_BYTES
    ranks: int = 1
    rank: int = 0

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
    def shown(self) -> int:
        """Pages of the window's parameters, and as many of its gradients."""
        return -(-self.begins[-1] * self.element_bytes // self.page_bytes)

    @property
    def apart(self) -> int:
        """Pages of the window that are no pages of the own space: none, if one rank owns all."""
        return 2 * self.shown if self.ranks > 1 else 0

    @property
    def part(self) -> int:
        """Elements of a page that a rank owns."""
        return self.page_bytes // self.element_bytes // self.ranks

    @property
    def kept(self) -> int:
        """Pages of the own parameters, and as many of the own gradients."""
        return -(-self.shown // self.ranks)

    @property
    def chunks(self) -> int:
        """Chunks of the own space."""
        own = self.begins[-1] if self.ranks == 1 else self.shown * self.part
        return -(-own // self.chunk)

    @property
    def states(self) -> int:
        """Kinds that only updates use."""
        return 2 if self.element_bytes == WIDE else 3

    @property
    def pages(self) -> int:
        """Pages of all kinds: those of the window, if apart, parameters, gradients, the others."""
        return self.apart + 2 * self.kept + self.states * self.chunks

    def offset(self, parameter: int, *, gradient: bool = False) -> int:
        """Offset of a parameter or its gradient in the window, in bytes."""
        return (self.begins[parameter] * self.element_bytes
                + gradient * self.shown * self.page_bytes)

    def pages_of(self, parameter: int, *, gradient: bool = False) -> range:
        """The pages of a parameter or its gradient."""
        begin = self.offset(parameter, gradient=gradient)
        end = begin + max(self.sizes[parameter], 1) * self.element_bytes
        return range(begin // self.page_bytes, -(-end // self.page_bytes))

    def parts_of(self, parameter: int, *, gradient: bool = False,
                 ) -> Iterator[tuple[int, int, int, int]]:
        """Give the pages of a parameter, where it is there, and the bytes of it that are there."""
        offset = self.offset(parameter, gradient=gradient)
        stop = offset + self.sizes[parameter] * self.element_bytes
        for page in self.pages_of(parameter, gradient=gradient):
            first = page * self.page_bytes
            begin, end = max(first, offset), min(first + self.page_bytes, stop)
            yield page, begin - first, begin - offset, end - offset

    def ranges(self, parameter: int) -> Iterator[tuple[int, int, int, int]]:
        """Give a parameter's elements of this rank: begin, end and chunk in the own space.

        The fourth number is that of the first of them in the parameter.
        """
        start, in_page = self.begins[parameter], self.page_bytes // self.element_bytes
        stop = start + self.sizes[parameter]
        for page in range(start // in_page, -(-stop // in_page)):
            first = page * in_page + self.rank * self.part
            at, end = max(start, first), min(stop, first + self.part)
            shift = first - page * self.part
            while at < end:
                chunk = (at - shift) // self.chunk
                to = min(end, (chunk + 1) * self.chunk + shift)
                yield at - shift, to - shift, chunk, at - start
                at = to

    def chunks_of(self, parameter: int) -> set[int]:
        """The chunks that a parameter has elements in: the same ones at all ranks."""
        if self.ranks == 1:
            return {chunk for _, _, chunk, _ in self.ranges(parameter)}
        return {chunk for page in self.pages_of(parameter) for chunk in range(
            page * self.part // self.chunk, -(-(page + 1) * self.part // self.chunk))}

    def shown_of(self, chunk: int) -> range:
        """The pages of the window's parameters that a chunk has elements of."""
        first, end = chunk * self.chunk, (chunk + 1) * self.chunk
        return range(first // self.part, min(-(-end // self.part), self.shown))

    def page_of_chunk(self, chunk: int) -> int:
        """The page of the own parameters that a chunk lies in."""
        return self.apart + chunk * self.chunk * self.element_bytes // self.page_bytes

    def source_of(self, page: int) -> tuple[int, int]:
        """The page of the own parameters that has the own part of a window's, and where, in bytes.

        Gradients lie `kept` pages behind.
        """
        return self.apart + page // self.ranks, (
            page % self.ranks * self.part * self.element_bytes)

    def states_of(self, chunk: int) -> list[int]:
        """The pages that only updates use: masters, if any, means, squares."""
        first = self.apart + 2 * self.kept + chunk * self.states
        return list(range(first, first + self.states))

    def pages_to_update(self, chunk: int) -> tuple[int, ...]:
        """All pages that an update of a chunk reads or writes."""
        page = self.page_of_chunk(chunk)
        return (page, self.kept + page, *self.states_of(chunk))


def whole_page(page_bytes: int, ranks: int) -> int:
    """Round a page's size up, so that it has equal parts for all ranks, each of whole lines."""
    step = math.lcm(8192, WIDE * ALIGN * ranks)
    return -(-page_bytes // step) * step
