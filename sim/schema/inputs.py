"""Read an input file: bounded in size, never waiting, and every failure one sentence."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sim.schema.errors import Problem, TopologyError

if TYPE_CHECKING:
    from pathlib import Path


def read_input(path: Path, *, most_bytes: int, allowed: str) -> bytes:
    """Bytes of a file; raises TopologyError where it cannot be read or is larger than allowed.

    Args:
        path: the file.
        most_bytes: largest file that is read.
        allowed: what the file should be, for the sentence about a directory.

    """
    file = str(path)
    try:
        with open(path, "rb", opener=_open_at_once) as stream:
            data = stream.read(most_bytes + 1)
    except IsADirectoryError:
        raise TopologyError(file, Problem("is a directory", allowed=allowed)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TopologyError(file, Problem(f"cannot be read: {reason}")) from None
    if len(data) > most_bytes:
        limit = f"at most {most_bytes >> 20} MiB"
        raise TopologyError(file, Problem("the file is too large", allowed=limit))
    return data


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for the other end of a FIFO: one that nobody writes to is empty."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor
