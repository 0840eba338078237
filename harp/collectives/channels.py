"""Channels of `harp.collectives.execute` in memory; `harp.net.channel` has those over HARP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from harp.collectives.window import NCCL_WINDOW

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from harp.collectives.window import Window

    Bytes = NDArray[np.uint8]


class MemoryChannel:
    """One end of a channel between two ranks of one event loop."""

    def __init__(self, out: asyncio.Queue[Bytes], into: asyncio.Queue[Bytes]) -> None:
        self._out, self._into = out, into

    @property
    def waiting(self) -> int:
        """Pieces that have come and were not taken."""
        return self._into.qsize()

    async def send(self, piece: Bytes) -> None:
        """Take a copy, when a slot is free."""
        await self._out.put(piece.copy())

    async def receive(self, nbytes: int) -> Bytes:
        """Give the next piece."""
        piece = await self._into.get()
        return check_size(piece, nbytes)


def memory_channels(ranks: int, window: Window = NCCL_WINDOW) -> list[dict[int, MemoryChannel]]:
    """Give each rank its channels to all others."""
    queues: dict[tuple[int, int], asyncio.Queue[Bytes]] = {
        (src, dst): asyncio.Queue(window.slots)
        for src in range(ranks) for dst in range(ranks) if src != dst}
    return [{peer: MemoryChannel(queues[rank, peer], queues[peer, rank])
             for peer in range(ranks) if peer != rank} for rank in range(ranks)]


def check_size(piece: Bytes, nbytes: int) -> Bytes:
    """Give a piece that has come; ValueError where it has another size."""
    if len(piece) != nbytes:
        raise ValueError(f"a piece of {len(piece)} B came where {nbytes} B were to come: the ranks "
                         "do not run the same plan")
    return piece
