"""Hold rtnl, the kernel's lock of all links, while a test looks for waiters on it.

ETHTOOLGSTRINGS copies names to memory of the caller while it holds the lock. That memory is a page
that is not there, and the test has to bring it (userfaultfd(2)).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import socket
import struct
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from lab.offloads import GSTRINGS, SIOCETHTOOL, SS_FEATURES
from lab.system_calls import checked, libc

if TYPE_CHECKING:
    from collections.abc import Iterator

_USERFAULTFD = {"x86_64": 323, "aarch64": 282}
_API, _REGISTER, _ZEROPAGE = 0xC018AA3F, 0xC020AA00, 0xC020AA04
_MISSING = 1
_PAGE = mmap.PAGESIZE
_PATIENCE_S = 10
"""The whole machine waits for the lock meanwhile."""


def _ioctl(fd: int, request: int, argument: bytes) -> None:
    cell = ctypes.create_string_buffer(argument, len(argument))
    checked(libc.ioctl(fd, ctypes.c_ulong(request), cell))


@contextmanager
def held_rtnl() -> Iterator[None]:
    """Hold it until the block ends."""
    faults = checked(libc.syscall(_USERFAULTFD[os.uname().machine], os.O_CLOEXEC))
    memory = mmap.mmap(-1, 2 * _PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    missing = start + _PAGE
    _ioctl(faults, _API, struct.pack("QQQ", 0xAA, 0, 0))
    _ioctl(faults, _REGISTER, struct.pack("QQQQ", missing, _PAGE, _MISSING, 0))
    header = struct.pack("III", GSTRINGS, SS_FEATURES, 0)
    memory[_PAGE - len(header):_PAGE] = header
    request = struct.pack("16sQ16x", b"lo", missing - len(header))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        holder = threading.Thread(target=_ioctl, args=(control.fileno(), SIOCETHTOOL, request))
        late = threading.Event()

        def let_go() -> None:
            with suppress(FileExistsError):
                _ioctl(faults, _ZEROPAGE, struct.pack("QQQQ", missing, _PAGE, 0, 0))

        def let_go_at_last() -> None:
            late.set()
            let_go()

        timer = threading.Timer(_PATIENCE_S, let_go_at_last)
        holder.start()
        timer.start()
        try:
            ready, _, _ = select.select([faults], [], [], 60)
            assert ready, "no thread took the lock"
            yield
            assert not late.is_set(), "a process waited for rtnl"
        finally:
            timer.cancel()
            let_go()
            holder.join()
            os.close(faults)
