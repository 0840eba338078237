"""Messages in the engine's frames: written where they leave from, read where they arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harp._cnet import ffi, lib
from harp.net.memory import Buffer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    from harp.net.connection import Connection


class Lent:
    """Holds a frame for a Buffer; gone with it, the frame is the connection's again."""

    __slots__ = ("connection", "frame")

    def __init__(self, connection: Connection, frame: int) -> None:
        self.connection, self.frame = connection, frame

    def __del__(self) -> None:
        self.connection._give_back(self.frame)


class Draft:
    """Frames to write a message into, to be sent in place: ``connection.send(draft)``.

    Iterating gives a writable Buffer a frame, in order, each full but the last. Leaving its context
    unsent gives the frames back.
    """

    def __init__(self, connection: Connection, frames: list[int], size: int, segment: int) -> None:
        self._connection = connection
        self._frames: list[int] | None = frames
        self.size = size
        """Bytes of the message."""
        self._buffers = []
        for i, frame in enumerate(frames):
            first = lib.harp_draft_bytes(connection._connection, frame)
            address = int(ffi.cast("uintptr_t", first))
            offset = i * segment
            buffer = Buffer(address, min(segment, size - offset), False, connection, 0, offset)
            self._buffers.append(buffer)
            connection._buffers.add(buffer)

    def __iter__(self) -> Iterator[Buffer]:
        return iter(self._buffers)

    def write(self, data: Any, offset: int = 0) -> None:
        """Copy ``data`` to ``offset`` of the message."""
        source = memoryview(data).cast("B")
        if offset < 0 or offset + len(source) > self.size:
            raise ValueError(f"{len(source)} bytes at {offset} do not fit into a draft of "
                             f"{self.size}")
        for buffer in self._buffers:
            first = max(offset, buffer.offset)
            last = min(offset + len(source), buffer.offset + len(buffer))
            if first < last:
                memoryview(buffer)[first - buffer.offset:last - buffer.offset] = \
                    source[first - offset:last - offset]

    def _take(self, connection: Connection) -> list[int]:
        if self._connection is not connection:
            raise ValueError("this draft is another connection's")
        if self._frames is None:
            raise ValueError("this draft was sent or given back already")
        for buffer in self._buffers:
            buffer.release()  # BufferError: somebody might still write
        frames, self._frames = self._frames, None
        return frames

    def release(self) -> None:
        """Give the frames back without sending them. BufferError while they are viewed."""
        if self._frames is not None:
            self._connection._drafts.extend(self._take(self._connection))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not any(buffer.views for buffer in self._buffers):
            self.release()

    def __del__(self) -> None:
        if getattr(self, "_frames", None) is not None and not any(b.views for b in self._buffers):
            self.release()


class Stream:
    """The frames of one message, as they arrive: in any order, each a read-only Buffer.

    ``buffer.offset`` says where in the message it belongs. Each is given back when its context is
    left, or when nothing refers to it any more; no more than the connection's ``streamed`` frames
    are ever out, so a caller that keeps them all stops a longer message.
    """

    def __init__(self, connection: Connection, message: int, timeout: float | None) -> None:
        self._connection = connection
        self.message = message
        self.timeout = timeout
        self.size: int | None = None
        """Bytes of the message, once all frames were read."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Buffer:
        connection = self._connection
        if self.size is not None:
            raise StopIteration
        with connection._guard:
            chunk = connection._next_chunk(self)
        if chunk is None:
            raise StopIteration
        return chunk

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Buffer:
        chunk = None if self.size is not None else await self._connection._next_chunk_async(self)
        if chunk is None:
            raise StopAsyncIteration
        return chunk
