"""Exceptions of the network stack.

HarpError
├── OpenError         (OSError)          an engine, port or connection cannot be made; ``errno``
├── EndedError        (ConnectionError)  a connection is over; ``reason``
│   ├── Closed                           an end closed it
│   ├── PeerGone                         the other end is silent, or its process has ended
│   └── Broken                           the ends are incompatible: protocol, size, version, MTU
├── Timeout           (TimeoutError)     nothing happened in the given time; try again
└── Forked            (RuntimeError)     it belongs to the parent of this process
"""

from __future__ import annotations

import enum
import os


class Reason(enum.IntEnum):
    """Why a connection is over: ``enum harp_reason`` of cnet/session/session.h."""

    DONE = 0
    UNDER_WAY = 1
    TOO_LONG = 2
    PROTOCOL = 3
    MEMORY = 4
    VERSION = 5
    MTU = 6
    UNHEARD = 7
    SILENT = 256
    NO_ANSWER = 257
    REFUSED = 258


class HarpError(Exception):
    """Base class of all network errors of this package."""


class OpenError(HarpError, OSError):
    """An engine, a port or a connection cannot be made; ``errno`` and one sentence say why."""

    @classmethod
    def of(cls, code: int, why: str) -> OpenError:
        """Make it from the negative errno and the sentence that C returned."""
        return cls(-code, why or os.strerror(-code))

    def __str__(self) -> str:
        """Give the sentence alone."""
        return str(self.strerror)


class EndedError(HarpError, ConnectionError):
    """A connection is over. ``reason`` is a :class:`Reason`, or None where this end closed it."""

    def __init__(self, why: str, reason: Reason | None = None) -> None:
        super().__init__(why)
        self.reason = reason


class Closed(EndedError):  # noqa: N818  (one word, like the others)
    """An end closed the connection: this one, or the other (``reason`` DONE or UNDER_WAY)."""


class PeerGone(EndedError):  # noqa: N818
    """The other end was silent for too long (SILENT, NO_ANSWER), or its process ended (REFUSED)."""


class Broken(EndedError):  # noqa: N818
    """The two ends are incompatible: protocol, a message too long, memory, version or MTU."""


class Timeout(HarpError, TimeoutError):  # noqa: N818
    """It did not happen in the given time; the operation continues, so try again."""


class Forked(HarpError, RuntimeError):  # noqa: N818
    """The engine belongs to the parent of this process: open one here."""


_CLASSES = {Reason.DONE: Closed, Reason.UNDER_WAY: Closed, Reason.SILENT: PeerGone,
            Reason.UNHEARD: PeerGone,
            Reason.NO_ANSWER: PeerGone, Reason.REFUSED: PeerGone}


def ended(code: int, why: str) -> EndedError:
    """Make the error of a connection that ended for the reason of that number."""
    try:
        reason = Reason(code)
    except ValueError:  # a peer of a later version
        return Broken(why)
    return _CLASSES.get(reason, Broken)(why, reason)
