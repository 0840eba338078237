"""Binding to source ports that another process may have."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import ExitStack


def bind_if_free(stack: ExitStack, source: str, port: int) -> socket.socket | None:
    """A UDP socket at this port, which ``stack`` closes; None where another process has the port.

    Raises OSError where the address is not ours.
    """
    sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    try:
        sock.bind((source, port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return sock
