"""Gradients that wait for late updates: how many there are, and how old they are.

A page of gradients holds a sum. An update takes all of it once in ``most`` steps, and makes as many
of Adam's steps as gradients are in the sum, each by their mean: so states are read and written once
for all of them. Each step updates another part of the pages, so that all have equal work:

    most = 2      step 4          step 5          step 6
    page 0        sum of 2, 3                     sum of 4, 5
    page 1                        sum of 3, 4                     ...

An update of step 6 ends before a gradient of step 6 is written. So an operator reads parameters
that lack the gradients of ``most`` steps at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from harp.angelptm.pages import Layout


class Waiting:
    """The gradients that wait. `take` is any thread's, the rest the main thread's.

    No lock is needed: an update of a chunk is over before the chunk's gradients are written.
    """

    def __init__(self, layout: Layout, most: int) -> None:
        self._layout, self.most = layout, most
        self._sums: dict[int, dict[int, int]] = {}
        """Of each chunk: gradients in the sum of each parameter."""
        self._oldest: dict[int, int] = {}
        """Of each chunk: the step of its first gradient."""

    def add(self, parameters: Iterable[int], step: int) -> None:
        """Hear that these parameters have a gradient of a step, which must be applied."""
        for number in parameters:
            for chunk in self._layout.chunks_of(number):
                self._oldest.setdefault(chunk, step)
                assert step - self._oldest[chunk] < self.most, "it is too old"
                sums = self._sums.setdefault(chunk, {})
                sums[number] = sums.get(number, 0) + 1

    def take(self, chunk: int) -> Mapping[int, int]:
        """Give the number of gradients of each parameter, which wait no longer."""
        found = self._sums.get(chunk, {})
        self._sums[chunk] = {}
        self._oldest.pop(chunk, None)
        return found

    def pages_of(self, number: int) -> set[int]:
        """Give the pages, among the own parameters', whose gradients have a sum to add to."""
        layout = self._layout
        return {layout.page_of_chunk(chunk) for chunk in layout.chunks_of(number)
                if number in self._sums.get(chunk, {})}

    def chunks(self) -> list[int]:
        """Give all chunks whose gradients wait."""
        return sorted(self._oldest)

    def due(self, chunks: Iterable[int], step: int) -> list[int]:
        """Choose the chunks that a step updates; those of a page go together."""
        return [chunk for chunk in chunks
                if (self._layout.page_of_chunk(chunk) - step) % self.most == 0]

    def age(self, pages: Collection[int], step: int) -> int:
        """Give how many steps these pages of the window are behind."""
        return max((step - oldest for chunk, oldest in tuple(self._oldest.items())
                    if any(page in pages for page in self._layout.shown_of(chunk))), default=0)
