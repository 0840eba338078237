"""A send, receive or connect that was begun on a connection, and its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harp.net.errors import EndedError, Timeout

if TYPE_CHECKING:
    from collections.abc import Generator

    from harp.net.connection import Connection


class Completion:
    """A send, a posted receive or a connect that was begun.

    Wait for it by :meth:`wait`, ask by :meth:`done`, or ``await`` it. Until it is over, the engine
    owns the memory that was passed, and this object keeps it alive.
    """

    __slots__ = ("__weakref__", "_connection", "_error", "_size", "kind", "memory", "message")

    def __init__(self, connection: Connection, kind: str, memory: Any = None) -> None:
        self._connection: Connection | None = connection
        self.kind = kind
        """``sending``, ``receiving`` or ``connecting``."""
        self._size: int | None = None
        self._error: EndedError | None = None
        self.memory = memory
        self.message = 0
        """The message's number in its direction, once it is done."""

    def settle(self, size: int | None, error: EndedError | None = None) -> None:
        """End it with a size or an error; the connection calls this once."""
        self._size, self._error, self.memory = size, error, None
        self._connection = None  # which is freed at once when it is forgotten

    @property
    def settled(self) -> bool:
        """Whether the connection has ended it; unlike :meth:`done`, does not ask C."""
        return self._size is not None or self._error is not None

    def done(self) -> bool:
        """Whether it is over, by success or by error. Never waits."""
        return self._connection is None or self._connection.poll(self)

    def result(self) -> int:
        """Return the message's size in bytes, or raise what ended the connection."""
        if self._error is not None:
            raise self._error
        if self._size is None:
            raise Timeout(f"{self.kind} is not over yet")
        return self._size

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it is over and return the message's size in bytes.

        Raises Timeout after ``timeout`` seconds (None: no limit but the connection's own), and an
        EndedError with its reason if the connection ended before.
        """
        if self._connection is not None:
            self._connection.wait_for(self, timeout)
        return self.result()

    def __await__(self) -> Generator[Any, None, int]:
        if self._connection is not None:
            yield from self._connection.wait_for_async(self).__await__()
        return self.result()
