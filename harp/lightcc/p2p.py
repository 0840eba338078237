"""What one rank of a group sends to another one beside collectives: messages, and news.

A letter is a head (kind, tag, size) and its bytes, in pieces. Messages are matched with receives by
rank and tag, whichever comes first; those that nobody has asked for yet wait in memory. News are
told to who made the letters.
"""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict, deque
from typing import TYPE_CHECKING

import numpy as np

from harp.collectives.window import NCCL_WINDOW
from harp.lightcc.peers import GroupError
from harp.net.errors import Closed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from harp.lightcc.peers import PeerChannel

    Bytes = NDArray[np.uint8]

HEAD = struct.Struct("<cqQ")
FIRST_BYTES = 4096
"""That come in one piece with the head: all of a short letter."""
MESSAGE = b"m"
"""The kind of a message; every other kind is news."""


class Letters:
    """Letters of one rank.

    Args:
        channels: one to each other rank.
        on_news: is told the sender, the kind and the text of news.
        on_gone: is told why, when a rank is gone that did not take its leave.

    """

    def __init__(self, channels: Mapping[int, PeerChannel],
                 on_news: Callable[[int, bytes, str], None],
                 on_gone: Callable[[str], None]) -> None:
        self._channels, self._on_news, self._on_gone = channels, on_news, on_gone
        self._locks = {peer: asyncio.Lock() for peer in channels}
        self._arrived: dict[tuple[int, int], deque[Bytes]] = defaultdict(deque)
        self._wanted: list[_Wanted] = []
        self._left: dict[int, str] = {}
        self._ended: str | None = None
        self._readers = {peer: asyncio.ensure_future(self._read(peer)) for peer in channels}

    async def write(self, peer: int, kind: bytes, tag: int, data: Bytes) -> None:
        """Send a letter; returns when ``data`` may change."""
        async with self._locks[peer]:
            channel = self._channels[peer]
            head = np.frombuffer(HEAD.pack(kind, tag, len(data)), np.uint8)
            await channel.send(np.concatenate([head, data[:FIRST_BYTES]]))
            for start in range(FIRST_BYTES, len(data), NCCL_WINDOW.slot_bytes):
                await channel.send(data[start:start + NCCL_WINDOW.slot_bytes])

    async def tell(self, peer: int, kind: bytes, news: str) -> None:
        """Send news."""
        await self.write(peer, kind, 0, np.frombuffer(news.encode(), np.uint8))

    async def receive(self, peer: int | None, tag: int) -> tuple[int, Bytes]:
        """Give the next message of a tag from a rank, or from any, and whose it is."""
        for source, of in self._arrived:
            if of == tag and peer in {None, source}:
                waiting = self._arrived[source, of]
                came = waiting.popleft()
                if not waiting:
                    del self._arrived[source, of]
                return source, came
        if self._ended is not None:  # since this call was begun
            raise GroupError(self._ended)
        if peer in self._left:
            raise GroupError(self._left[peer])
        wanted = _Wanted(peer, tag)
        self._wanted.append(wanted)
        return await wanted.message

    async def heard_all_of(self, peer: int) -> None:
        """Wait until a rank is gone and all that it said has been heard."""
        await asyncio.wait([self._readers[peer]])

    async def _read(self, peer: int) -> None:
        try:
            while True:
                kind, tag, data = await self._next(peer)
                if kind == MESSAGE:
                    self._deliver(peer, tag, data)
                else:
                    self._on_news(peer, kind, bytes(data).decode(errors="replace"))
        except GroupError as error:
            if isinstance(error.__cause__, Closed):
                self._left[peer] = str(error)
                self._end([wanted for wanted in self._wanted if wanted.peer == peer], str(error))
            else:
                self._on_gone(str(error))

    async def _next(self, peer: int) -> tuple[bytes, int, Bytes]:
        channel = self._channels[peer]
        first = await channel.take()
        kind, tag, size = HEAD.unpack(bytes(first[:HEAD.size]))
        data = np.empty(size, np.uint8)
        data[:FIRST_BYTES] = first[HEAD.size:]
        for start in range(FIRST_BYTES, size, NCCL_WINDOW.slot_bytes):
            piece = await channel.take()
            data[start:start + len(piece)] = piece
        return kind, tag, data

    def _deliver(self, peer: int, tag: int, data: Bytes) -> None:
        for at, wanted in enumerate(self._wanted):
            if wanted.tag == tag and wanted.peer in {None, peer} and not wanted.message.done():
                del self._wanted[at]
                wanted.message.set_result((peer, data))
                return
        self._arrived[peer, tag].append(data)

    def end(self, why: str) -> None:
        """Give up what is waited for, and wait for nothing any more."""
        self._ended = why
        self._end(self._wanted, why)
        self._wanted = []

    def _end(self, ended: list[_Wanted], why: str) -> None:
        for wanted in ended:
            if not wanted.message.done():
                wanted.message.set_exception(GroupError(why))

    async def close(self) -> None:
        """Read no more."""
        for reader in self._readers.values():
            reader.cancel()
        await asyncio.gather(*self._readers.values(), return_exceptions=True)


class _Wanted:
    """A receive that waits for its message."""

    def __init__(self, peer: int | None, tag: int) -> None:
        self.peer, self.tag = peer, tag
        self.message: asyncio.Future[tuple[int, Bytes]] = (
            asyncio.get_running_loop().create_future())
