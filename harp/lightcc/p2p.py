"""Point-to-point messages between ranks: the program's data, and news of failures.

A message is a header (kind, tag, size) and its bytes, in pieces. Data is matched with receives by
rank and tag, whichever comes first; data without a receive waits in memory. News, and a rank that
is gone, are reported to the group's `Failure`.
"""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict, deque
from typing import TYPE_CHECKING

import numpy as np

from harp.collectives.window import NCCL_WINDOW
from harp.lightcc.failure import GroupError
from harp.net.errors import Closed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from harp.lightcc.failure import Failure
    from harp.lightcc.peers import PeerChannel

    Bytes = NDArray[np.uint8]

HEADER = struct.Struct("<cqQ")
FIRST_BYTES = 4096
"""Bytes that leave in one piece with the header: all of a short message."""
DATA = b"m"
"""The kind of the program's messages; every other kind is news."""


class PointToPoint:
    """The messages of one rank.

    Args:
        channels: one to each other rank.
        failure: the group's; gets the news, and the ranks that are gone without closing.

    """

    def __init__(self, channels: Mapping[int, PeerChannel], failure: Failure) -> None:
        self._channels, self._failure = channels, failure
        self._locks = {peer: asyncio.Lock() for peer in channels}
        self._arrived: dict[tuple[int, int], deque[Bytes]] = defaultdict(deque)
        self._receives: list[_Receive] = []
        self.left: dict[int, str] = {}
        """Ranks that have closed the group, each with the sentence. Any thread may read it."""
        self.gone: set[int] = set()
        """Ranks that ended or were silent for too long, without closing. Any thread may read it."""
        self._ended: str | None = None
        self._readers = {peer: asyncio.ensure_future(self._read_messages(peer))
                         for peer in channels}

    async def write(self, peer: int, kind: bytes, tag: int, data: Bytes) -> None:
        """Send a message; returns when ``data`` may change."""
        async with self._locks[peer]:
            channel = self._channels[peer]
            header = np.frombuffer(HEADER.pack(kind, tag, len(data)), np.uint8)
            await channel.send(np.concatenate([header, data[:FIRST_BYTES]]))
            for start in range(FIRST_BYTES, len(data), NCCL_WINDOW.slot_bytes):
                await channel.send(data[start:start + NCCL_WINDOW.slot_bytes])

    async def send_news(self, peer: int, kind: bytes, news: str) -> None:
        """Send news."""
        await self.write(peer, kind, 0, np.frombuffer(news.encode(), np.uint8))

    async def receive(self, peer: int | None, tag: int) -> tuple[int, Bytes]:
        """Return the rank and the data of the next message of a tag, from ``peer`` or from any."""
        for source, of in self._arrived:
            if of == tag and peer in {None, source}:
                waiting = self._arrived[source, of]
                came = waiting.popleft()
                if not waiting:
                    del self._arrived[source, of]
                return source, came
        if self._ended is not None:  # after this call was begun
            raise GroupError(self._ended)
        if peer in self.left:
            raise GroupError(self.left[peer])
        receive = _Receive(peer, tag)
        self._receives.append(receive)
        return await receive.message

    async def read_all_of(self, peer: int) -> None:
        """Wait until a rank is gone and all its messages have been read."""
        await asyncio.wait([self._readers[peer]])

    async def _read_messages(self, peer: int) -> None:
        try:
            while True:
                kind, tag, data = await self._read_message(peer)
                if kind == DATA:
                    self._deliver_data(peer, tag, data)
                else:
                    self._failure.take_news(peer, kind, bytes(data).decode(errors="replace"))
        except GroupError as error:
            if isinstance(error.__cause__, Closed):
                self.left[peer] = str(error)
                self._fail_receives([receive for receive in self._receives
                                     if receive.peer == peer], str(error))
            else:
                self.gone.add(peer)
                self._failure.report(str(error))

    async def _read_message(self, peer: int) -> tuple[bytes, int, Bytes]:
        channel = self._channels[peer]
        first = await channel.take()
        kind, tag, size = HEADER.unpack(bytes(first[:HEADER.size]))
        data = np.empty(size, np.uint8)
        data[:FIRST_BYTES] = first[HEADER.size:]
        for start in range(FIRST_BYTES, size, NCCL_WINDOW.slot_bytes):
            piece = await channel.take()
            data[start:start + len(piece)] = piece
        return kind, tag, data

    def _deliver_data(self, peer: int, tag: int, data: Bytes) -> None:
        for at, receive in enumerate(self._receives):
            if receive.tag == tag and receive.peer in {None, peer} and not receive.message.done():
                del self._receives[at]
                receive.message.set_result((peer, data))
                return
        self._arrived[peer, tag].append(data)

    def end(self, why: str) -> None:
        """Fail the receives that wait, and all later ones."""
        self._ended = why
        self._fail_receives(self._receives, why)
        self._receives = []

    @staticmethod
    def _fail_receives(receives: list[_Receive], why: str) -> None:
        for receive in receives:
            if not receive.message.done():
                receive.message.set_exception(GroupError(why))

    async def close(self) -> None:
        """Read no more."""
        for reader in self._readers.values():
            reader.cancel()
        await asyncio.gather(*self._readers.values(), return_exceptions=True)


class _Receive:
    """A receive that waits for its message."""

    def __init__(self, peer: int | None, tag: int) -> None:
        self.peer, self.tag = peer, tag
        self.message: asyncio.Future[tuple[int, Bytes]] = (
            asyncio.get_running_loop().create_future())
