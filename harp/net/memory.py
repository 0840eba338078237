"""Buffers: memory of the engine or of a message, which numpy and torch wrap without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harp._memory import Memory

if TYPE_CHECKING:
    from typing_extensions import Self


class Buffer(Memory):
    """Bytes that the buffer protocol gives access to, without a copy.

    ``memoryview(buffer)``, ``numpy.frombuffer(buffer, dtype)`` and ``torch.frombuffer(buffer,
    dtype=…)`` view it. It is given back when nothing refers to it any more and no view is left; or
    when its context is left, as soon as no view is; or at once by :meth:`release`, which is a
    BufferError while there are views.

    ``message`` is the message's number, counted from 0 in its direction, ``offset`` where these
    bytes lie in it.
    """

    message: int
    offset: int

    def __new__(cls, address: int, length: int, readonly: bool, owner: object,
                message: int = 0, offset: int = 0) -> Self:
        """Made by connections."""
        made = super().__new__(cls, address, length, readonly, owner)
        made.message = message
        made.offset = offset
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def __bytes__(self) -> bytes:
        """Copy them."""
        return memoryview(self).tobytes()

    def __repr__(self) -> str:
        state = "given back" if self.released else f"{len(self)} bytes"
        return f"<Buffer of message {self.message}, offset {self.offset}: {state}>"
