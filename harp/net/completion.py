"""What was begun on a session and is not over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harp.net.errors import SessionError, Timeout

if TYPE_CHECKING:
    from collections.abc import Generator

    from harp.net.session import Session


class Completion:
    """What was begun and is not over: a send, a posted receive, a connect.

    Wait for it by :meth:`wait`, ask by :meth:`done`, or ``await`` it. Memory that was handed over
    belongs to the engine until then, and is kept alive.
    """

    __slots__ = ("__weakref__", "_error", "_session", "_size", "_what", "memory", "message")

    def __init__(self, session: Session, what: str, memory: Any = None) -> None:
        self._session: Session | None = session
        self._what = what
        self._size: int | None = None
        self._error: SessionError | None = None
        self.memory = memory
        self.message = 0
        """The message's number in its direction, once it is done."""

    def _settle(self, size: int | None, error: SessionError | None = None) -> None:
        self._size, self._error, self.memory = size, error, None
        self._session = None  # which is freed at once when it is forgotten

    @property
    def _settled(self) -> bool:
        return self._size is not None or self._error is not None

    def done(self) -> bool:
        """Whether it is over, by success or by error. Never waits."""
        return self._session is None or self._session._look(self)

    def result(self) -> int:
        """Return the message's size in bytes, or raise what ended the session."""
        if self._error is not None:
            raise self._error
        if self._size is None:
            raise Timeout(f"{self._what} is not over yet")
        return self._size

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it is over and return the message's size in bytes.

        Raises Timeout after ``timeout`` seconds (None: no limit but the session's own), and a
        SessionError with its reason if the session ended before.
        """
        if self._session is not None:
            self._session._wait(self, timeout)
        return self.result()

    def __await__(self) -> Generator[Any, None, int]:
        if self._session is not None:
            yield from self._session._until_async(lambda: self._settled).__await__()
        return self.result()
