"""A channel of `harp.collectives.execute` over a HARP connection.

Either end of a connection has a window of buffers posted for pieces to come, so a receiver that
does not take them out holds the sender back: HARP's credit is the window's slots.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from harp.collectives.channels import check_size
from harp.collectives.window import NCCL_WINDOW
from harp.net.errors import EndedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harp.collectives.window import Window
    from harp.net.completion import Completion
    from harp.net.connection import Connection

    Bytes = NDArray[np.uint8]


class ConnectionChannel:
    """A channel over a HARP connection; both ends must have the same window."""

    def __init__(self, connection: Connection, window: Window = NCCL_WINDOW) -> None:
        self._connection = connection
        self._sent: deque[Completion] = deque()
        self._slots = window.slots
        self._free = [np.empty(window.slot_bytes, np.uint8) for _ in range(window.slots)]
        self._posted: deque[tuple[Bytes, Completion]] = deque()

    async def send(self, piece: Bytes) -> None:
        """Hand over a copy, when fewer pieces than slots are on their way."""
        while len(self._sent) >= self._slots:
            await self._sent.popleft()
        self._sent.append(self._connection.send(piece.copy(), 0))

    async def receive(self, nbytes: int) -> Bytes:
        """Give the next piece."""
        return check_size(await self.take(), nbytes)

    async def take(self) -> Bytes:
        """Give the next piece, of whatever size."""
        try:
            self._post_free_slots()
        except EndedError:
            if not self._posted:  # what came before the end is still to be taken
                raise
        buffer, posted = self._posted.popleft()
        size = await posted
        self._free.append(buffer)
        return buffer[:size]

    async def flush(self) -> None:
        """Wait until the other end has all that was sent."""
        while self._sent:
            await self._sent.popleft()

    def _post_free_slots(self) -> None:
        while self._free:
            self._posted.append((self._free[-1], self._connection.post(self._free[-1], 0)))
            self._free.pop()
