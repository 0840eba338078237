"""What was begun on a connection and is not over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harp.net.errors import EndedError, Timeout

if TYPE_CHECKING:
    from collections.abc import Generator

    from harp.net.connection import Connection


class Completion:
    """What was begun and is not over: a send, a posted receive, a connect.

    Wait for it by :meth:`wait`, ask by :meth:`done`, or ``await`` it. Memory that was handed over
    belongs to the engine until then, and is kept alive.
    """

    __slots__ = ("__weakref__", "_connection", "_error", "_size", "_what", "memory", "message")

    def __init__(self, connection: Connection, what: str, memory: Any = None) -> None:
        self._connection: Connection | None = connection
        self._what = what
        self._size: int | None = None
        self._error: EndedError | None = None
        self.memory = memory
        self.message = 0
        """The message's number in its direction, once it is done."""

    def _settle(self, size: int | None, error: EndedError | None = None) -> None:
        self._size, self._error, self.memory = size, error, None
        self._connection = None  # which is freed at once when it is forgotten

    @property
    def _settled(self) -> bool:
        return self._size is not None or self._error is not None

    def done(self) -> bool:
        """Whether it is over, by success or by error. Never waits."""
        return self._connection is None or self._connection._look(self)

    def result(self) -> int:
        """Return the message's size in bytes, or raise what ended the connection."""
        if self._error is not None:
            raise self._error
        if self._size is None:
            raise Timeout(f"{self._what} is not over yet")
        return self._size

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it is over and return the message's size in bytes.

        Raises Timeout after ``timeout`` seconds (None: no limit but the connection's own), and a
        EndedError with its reason if the connection ended before.
        """
        if self._connection is not None:
            self._connection._wait(self, timeout)
        return self.result()

    def __await__(self) -> Generator[Any, None, int]:
        if self._connection is not None:
            yield from self._connection._until_async(lambda: self._settled).__await__()
        return self.result()
