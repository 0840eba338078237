"""Port numbers on the loopback interface that stay free until a test binds them."""

from __future__ import annotations

import errno
import itertools
import os
import socket
from pathlib import Path

PER_PROCESS = 16
_tries = itertools.count(os.getpid() * PER_PROCESS)
"""Processes with numbers near each other, such as pytest's workers, try different ports."""


def free_ports(count: int, kind: socket.SocketKind = socket.SOCK_DGRAM) -> list[int]:
    """Give ports of 127.0.0.1 that no socket has, each once.

    They lie below the range from which the kernel chooses, where there is room: no socket that
    asks for any port gets one of them between this call and the bind. A program that draws ports
    by itself might, as browsers do for look-ups of names.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(10_000, lowest) or range(10_000, 1 << 16)
    found: list[int] = []
    for number in itertools.islice(_tries, len(ports)):
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind(("127.0.0.1", ports[number % len(ports)]))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            found.append(probe.getsockname()[1])
        if len(found) == count:
            return found
    raise AssertionError(f"fewer than {count} ports are free")
