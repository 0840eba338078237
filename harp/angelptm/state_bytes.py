"""The states of parameters as bytes in their pages: masters, means, squares, and what trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from harp._cnet import ffi
from harp.angelptm.pages import WIDE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from harp.angelptm.pages import Layout
    from harp.angelptm.steps import Steps

OWN = -1
"""The kind of parameters in the precision of training; masters, means and squares are 0, 1, 2."""


class States:
    """Reads and writes them, between steps."""

    def __init__(self, layout: Layout, steps: Steps, dtype: torch.dtype) -> None:
        self._layout, self._steps, self._dtype = layout, steps, dtype

    def pieces(self, number: int, kind: int) -> Iterator[tuple[int, memoryview]]:
        """Give the bytes of a parameter's states of a kind, page by page.

        The first number of each is where it begins in the whole parameter, in bytes.
        """
        layout = self._layout
        for begin, end, chunk, first in layout.ranges(number):
            width, at = WIDE, WIDE * (begin - chunk * layout.chunk)
            pages = layout.states_of(chunk)
            if len(pages) == 2:
                pages.insert(0, layout.page_of_chunk(chunk))
            page = pages[kind]
            if kind == OWN:
                width, page = layout.element_bytes, layout.page_of_chunk(chunk)
                at = width * begin % layout.page_bytes
            with self._steps.opened(page) as address:
                yield width * first, memoryview(ffi.buffer(ffi.cast("uint8_t *", address + at),
                                                           width * (end - begin)))

    def restore(self, number: int, states: Mapping[int, memoryview]) -> None:
        """Write this rank's part of a parameter's masters, means and squares; all ranks get all.

        Those that are not given stay.
        """
        for kind, data in states.items():
            for at, piece in self.pieces(number, kind):
                piece[:] = data[at:at + len(piece)]
        narrow = 0 in states and self._layout.element_bytes != WIDE
        for at, piece in self.pieces(number, OWN) if narrow else ():
            part = states[0][2 * at:2 * (at + len(piece))]  # a float32 for each two bytes
            own = torch.frombuffer(bytearray(part), dtype=torch.float32).to(self._dtype)
            ffi.memmove(piece, ffi.from_buffer(own.view(torch.uint8).numpy()), len(piece))

    def take_over(self, number: int) -> None:
        """Make masters of what a script has written to a parameter; others keep their last bits."""
        written = [bytearray(piece) for _, piece in self.pieces(number, OWN)]
        for data, (_, piece) in zip(written, self.pieces(number, 0), strict=True):
            own = torch.frombuffer(data, dtype=self._dtype)
            masters = torch.frombuffer(piece, dtype=torch.float32)
            torch.where(masters.to(self._dtype) == own, masters, own.float(), out=masters)

    def forget(self) -> None:
        """Drop what this rank has of other ranks' parts: it is old."""
        self._steps.forget(range(self._layout.apart))
