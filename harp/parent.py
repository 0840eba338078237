"""End a process with the one that started it, however that one ended.

Neither SIGKILL nor the kernel's out-of-memory killer leaves a process the time to end its children.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""prctl(2): the kernel sends this signal when the thread ends that forked the caller."""

_libc = ctypes.CDLL(None)
"""Opened once, before any fork: `end_with_parent` may run where only safe calls are allowed."""


def end_with_parent(parent: int) -> None:
    """Have the kernel kill the caller by SIGKILL when its parent ends. Only Linux has this.

    Args:
        parent: process id of the parent, read before the fork: it may have ended since.
    """
    if sys.platform != "linux":
        return
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
