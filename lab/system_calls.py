"""libc's system calls that Python has no function for."""

from __future__ import annotations

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int) -> int:
    """Return the result of a call of libc's, or raise its OSError."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
