"""Gradients of several ranks: which pages are complete, and their sums.

A page of gradients is in the window while the backward pass writes it. When it is complete it is
reduced: each rank keeps the mean of its own part, and the page is dropped. ZeRO 1 adds up
micro-batches first and reduces once a step, ZeRO 2 and 3 reduce at each micro-batch.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import torch

from harp.angelptm.cache import ROUNDS
from harp.angelptm.pages import WIDE
from harp.angelptm.state_window import tensor_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harp.angelptm.cache import Cache
    from harp.angelptm.ranks import Ranks


class Reduction:
    """The state of each page of gradients. `reduce` is any thread's, the rest the main thread's."""

    def __init__(self, cache: Cache, ranks: Ranks, dtype: torch.dtype, *, each: bool,
                 norms: bool) -> None:
        self._cache, self._ranks, self._dtype = cache, ranks, dtype
        cache.gather = self.gather
        self.each = each
        """Whether at each micro-batch."""
        self._norms = norms
        layout = cache.layout
        self._members: list[set[int]] = [set() for _ in range(layout.shown)]
        for number in range(len(layout.sizes)):
            for page in layout.pages_of(number):
                self._members[page].add(number)
        self._here: list[set[int]] = [set() for _ in range(layout.shown)]
        """Parameters of each page whose gradient has come in this micro-batch."""
        self._dirty = [False] * layout.shown
        """Whether a page has gradients that are not reduced."""
        self._summed: set[int] = set()
        """Pages whose own part has a sum of this step."""
        self._squares: dict[int, float] = {}
        self._reduces = False
        self._received = torch.empty(layout.part * layout.ranks, dtype=dtype)
        self._total = torch.empty(layout.part, dtype=torch.float32)

    def begin(self, *, last: bool) -> None:
        """Begin a micro-batch, which may be the last of its step."""
        for here in self._here:
            here.clear()
        self._reduces = self.each or last

    def wrote(self, number: int) -> None:
        """Hear that a parameter's gradient is in its pages."""
        for page in self._cache.layout.pages_of(number):
            self._here[page].add(number)
            self._dirty[page] = True

    def due(self, pages: Iterable[int] | None = None, *, over: bool = False) -> list[int]:
        """Give the pages to reduce now: all that have gradients if the micro-batch is over."""
        shown = range(len(self._dirty)) if pages is None else pages
        return [page for page in shown if self._dirty[page] and (
            (self._reduces and (over or self._here[page] == self._members[page]))
            or (self.each and not self._here[page]))]

    def end(self, waiting: Iterable[int] = ()) -> float:
        """End a step; gives the sum of the squares of this rank's part.

        Gradients of the chunks that are ``waiting`` stay, and others are added to them.
        """
        square = math.fsum(self._squares.values())
        self._summed.intersection_update(
            page for chunk in waiting for page in self._cache.layout.shown_of(chunk))
        self._squares.clear()
        return square

    def forget(self) -> None:
        """Forget the gradients of this step."""
        self._dirty = [False] * len(self._dirty)
        self._summed.clear()
        self._squares.clear()

    def updated(self, chunk: int) -> None:
        """Hear that an update took what waited."""
        self._summed.difference_update(self._cache.layout.shown_of(chunk))

    def measure(self) -> float:
        """Measure gathers, in pages a second; all ranks do."""
        took = []
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            self._ranks.gather(self._received, self._received[:self._cache.layout.part].clone())
            took.append(time.perf_counter() - begun)
        return 1 / min(took)

    def gather(self, page: int, address: int) -> None:
        """Fill a page of parameters from all ranks' parts."""
        layout = self._cache.layout
        source, at = layout.source_of(page)
        self._ranks.gather(
            tensor_at(address, layout.part * layout.ranks, self._dtype),
            tensor_at(self._cache.address(source) + at, layout.part, self._dtype))

    def reduce(self, page: int) -> None:
        """Reduce a page of gradients; it and the page of its own part are in memory."""
        layout = self._cache.layout
        source, at = layout.source_of(page)
        own = tensor_at(self._cache.address(source + layout.kept) + at, layout.part, self._dtype)
        self._ranks.exchange(self._received, tensor_at(
            self._cache.address(layout.shown + page), layout.part * layout.ranks, self._dtype))
        parts = self._received.view(layout.ranks, -1)
        total = parts[0] if layout.element_bytes == WIDE else self._total.copy_(parts[0])
        for other in parts[1:]:
            total.add_(other)
        total.mul_(1 / layout.ranks)
        if page in self._summed:
            own.add_(total)
        else:
            own.copy_(total)
        self._summed.add(page)
        if self._norms:
            self._squares[page] = float(torch.linalg.vector_norm(own, dtype=torch.float64)) ** 2
        self._dirty[page] = False
