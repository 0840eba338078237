"""A guard of engines, listeners and connections: one thread at a time, one process."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from harp.net.errors import Closed, Forked, HarpError, Timeout

if TYPE_CHECKING:
    from collections.abc import Callable

SLICE_NS = 100_000_000  # longest wait in C, so that Ctrl-C and a close are seen


class Guard:
    """``with guard:`` around every use of C's objects.

    A second thread gets an error instead of waiting for the first one's message, unless the guard
    is ``patient``. :meth:`close` waits, and makes the first one give up.
    """

    ended = False
    """The interpreter is ending: threads may have been stopped while they were inside."""

    def __init__(self, what: str, *, patient: bool = False) -> None:
        self.what = what
        self.patient = patient
        self.closed = False
        self._closing = False
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raise unless this process may use it and it is not being closed."""
        if self._pid != os.getpid():
            raise Forked(f"this {self.what} belongs to the parent of this process: "
                         "open an engine here")
        if self._closing or self.closed:
            raise Closed(f"this {self.what} is closed")

    def __enter__(self) -> None:
        self.check()
        if not self._lock.acquire(blocking=self.patient):
            raise HarpError(f"this {self.what} is in use by another thread; "
                            "one thread at a time may use it")
        if self.closed:
            self._lock.release()
            self.check()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @property
    def in_use(self) -> bool:
        """Whether a thread is inside."""
        return self._lock.locked()

    def close(self, action: Callable[[], None]) -> None:
        """Run ``action`` once, after the thread inside has given up."""
        if self.closed:
            return
        if self._pid != os.getpid() or Guard.ended:
            self.closed = True  # the parent goes on with it; the end of the process frees it
            return
        self._closing = True
        try:
            with self._lock:
                if not self.closed:
                    action()
                    self.closed = True
        finally:
            self._closing = False

    def leave(self, close: Callable[[], None]) -> None:
        """Close; if views of memory are in use, refuse further use instead."""
        try:
            close()
        except BufferError:
            self._closing = True

    def until(self, ready: Callable[[], bool], wait: Callable[[int], object],
              timeout: float | None, what: str) -> None:
        """Wait in C until ``ready``; at most ``timeout`` seconds, then raise Timeout."""
        end = None if timeout is None else time.monotonic() + timeout
        while not ready():
            self.check()
            left = SLICE_NS if end is None else int((end - time.monotonic()) * 1e9)
            if left <= 0:
                raise Timeout(f"{what} did not happen within {timeout:g} s")
            wait(min(left, SLICE_NS))
