"""Waiting for a descriptor of C in asyncio's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os


def clear(fd: int) -> None:
    """Take note that it was readable."""
    with contextlib.suppress(BlockingIOError):
        os.read(fd, 8)


async def readable(fd: int) -> None:
    """Wait until it is readable, and clear it."""
    loop = asyncio.get_running_loop()
    there = loop.create_future()

    def wake() -> None:
        if not there.done():
            there.set_result(None)

    loop.add_reader(fd, wake)
    try:
        await there
    finally:
        loop.remove_reader(fd)
    clear(fd)
