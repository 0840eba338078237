"""The control channel of ``harp perf``: dictionaries that the two ends send each other.

They are sent over a TCP connection (or a pair of sockets) as lines of JSON, or over a HARP
connection as one message each.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

import click

from harp.net.errors import EndedError, Timeout

if TYPE_CHECKING:
    import socket

    from harp.net import Connection

LONGEST = 1 << 16
PATIENCE_S = 30.0


class Gone(click.ClickException):
    """The other end has gone, or broke the protocol."""


class RemoteError(click.ClickException):
    """The other end failed and sent its reason."""

    def __init__(self, why: str, *, is_wrong_use: bool) -> None:
        super().__init__(f"the other end: {why}")
        self.why, self.is_wrong_use = why, is_wrong_use


class Channel(Protocol):
    """One end of the conversation."""

    def tell(self, **said: Any) -> None:
        """Send a dictionary."""

    def hear(self, timeout: float | None = PATIENCE_S) -> dict[str, Any]:
        """Wait for a dictionary; Gone after ``timeout`` seconds or when the channel ends."""

    def close(self) -> None:
        """Close it."""


class Lines:
    """A channel over a socket."""

    def __init__(self, made: socket.socket) -> None:
        self._socket = made
        self._file = made.makefile("rb")

    def tell(self, **said: Any) -> None:
        """Send a dictionary."""
        try:
            self._socket.sendall(json.dumps(said).encode() + b"\n")
        except OSError as error:
            raise Gone(f"the other end has gone: {error.strerror}") from error

    def hear(self, timeout: float | None = PATIENCE_S) -> dict[str, Any]:
        """Wait for a dictionary."""
        self._socket.settimeout(timeout)
        try:
            line = self._file.readline(LONGEST)
        except TimeoutError as error:
            raise Gone(f"the other end said nothing for {timeout:g} s") from error
        except OSError as error:
            raise Gone(f"the other end has gone: {error.strerror}") from error
        finally:
            self._socket.settimeout(None)
        return _parse_message(line)

    def close(self) -> None:
        """Close it."""
        self._file.close()
        self._socket.close()


class Messages:
    """A channel over a HARP connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def tell(self, **said: Any) -> None:
        """Send a dictionary."""
        try:
            self._connection.send(json.dumps(said).encode())
        except EndedError as error:
            raise Gone(f"the other end has gone: {error}") from error

    def hear(self, timeout: float | None = PATIENCE_S) -> dict[str, Any]:
        """Wait for a dictionary."""
        try:
            return _parse_message(bytes(self._connection.recv(LONGEST, timeout)))
        except Timeout as error:
            raise Gone(f"the other end said nothing for {timeout:g} s") from error
        except EndedError as error:
            raise Gone(f"the other end has gone: {error}") from error

    def close(self) -> None:
        """Close it."""
        self._connection.close()


def _parse_message(text: bytes) -> dict[str, Any]:
    if not text:
        raise Gone("the other end has gone")
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise Gone("the other end is not `harp perf`")
    if "error" in said:
        raise RemoteError(str(said["error"]), is_wrong_use=said.get("wrong_use") is True)
    return said
