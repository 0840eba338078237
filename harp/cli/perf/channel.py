"""What the two ends of a measurement tell each other: dictionaries, one after the other.

They go over a TCP connection (or a pair of sockets) as lines of JSON, or over a HARP connection, a
message each.
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
    """The other end is not there any more, or says something else than was agreed."""


class Told(click.ClickException):
    """The other end failed, and said why."""

    def __init__(self, why: str, *, is_wrong_use: bool) -> None:
        super().__init__(f"the other end says: {why}")
        self.why, self.is_wrong_use = why, is_wrong_use


class Channel(Protocol):
    """One end of the conversation."""

    def tell(self, **said: Any) -> None:
        """Say something."""

    def hear(self, timeout: float | None = PATIENCE_S) -> dict[str, Any]:
        """Wait for what the other end says; Gone after ``timeout`` seconds or at its end."""

    def close(self) -> None:
        """End it."""


class Lines:
    """Over a socket."""

    def __init__(self, made: socket.socket) -> None:
        self._socket = made
        self._file = made.makefile("rb")

    def tell(self, **said: Any) -> None:
        """Say something."""
        try:
            self._socket.sendall(json.dumps(said).encode() + b"\n")
        except OSError as error:
            raise Gone(f"the other end is gone: {error.strerror}") from error

    def hear(self, timeout: float | None = PATIENCE_S) -> dict[str, Any]:
        """Wait for what the other end says."""
        self._socket.settimeout(timeout)
        try:
            line = self._file.readline(LONGEST)
        except TimeoutError as error:
            raise Gone(f"the other end said nothing for {timeout:g} s") from error
        except OSError as error:
            raise Gone(f"the other end is gone: {error.strerror}") from error
        finally:
            self._socket.settimeout(None)
        return _understood(line)

    def close(self) -> None:
        """End it."""
        self._file.close()
        self._socket.close()


class Messages:
    """Over a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def tell(self, **said: Any) -> None:
        """Say something."""
        try:
            self._connection.send(json.dumps(said).encode())
        except EndedError as error:
            raise Gone(f"the other end is gone: {error}") from error

    def hear(self, timeout: float | None = PATIENCE_S) -> dict[str, Any]:
        """Wait for what the other end says."""
        try:
            return _understood(bytes(self._connection.recv(LONGEST, timeout)))
        except Timeout as error:
            raise Gone(f"the other end said nothing for {timeout:g} s") from error
        except EndedError as error:
            raise Gone(f"the other end is gone: {error}") from error

    def close(self) -> None:
        """End it."""
        self._connection.close()


def _understood(text: bytes) -> dict[str, Any]:
    if not text:
        raise Gone("the other end is gone")
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise Gone("the other end is no `harp perf`")
    if "error" in said:
        raise Told(str(said["error"]), is_wrong_use=said.get("wrong_use") is True)
    return said
