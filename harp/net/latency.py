"""Round trips to other hosts, without rights and with nothing running there.

A TCP connect (RFC 9293) is answered by the kernel of the other host after one round trip: by
SYN-ACK where somebody listens, by RST where nobody does, at any rate it likes (ICMP echo and
"port unreachable" are rate-limited, and the former wants rights). The least of many is what the way
takes when nothing is in it; what the kernels and this program take is in it as well, alike for all.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time

PROBES = 200
WAIT_S = 1.0
"""For one answer."""
GIVE_UP = 3
"""Connects in a row without an answer."""


def least_round_trip_s(source: str, target: tuple[str, int], probes: int = PROBES) -> float | None:
    """Connect so often and give the shortest time to an answer; None if none comes.

    Raises OSError where the kernel has no way there.
    """
    least, silent = None, 0
    for _ in range(probes):
        taken_s = _connect(source, target)
        silent = silent + 1 if taken_s is None else 0
        if taken_s is not None and (least is None or taken_s < least):
            least = taken_s
        if silent == GIVE_UP:
            break
    return least


def _connect(source: str, target: tuple[str, int]) -> float | None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as sock:
        sock.bind((source, 0))
        poll = select.poll()
        poll.register(sock, select.POLLOUT)
        began_ns = time.perf_counter_ns()
        error = sock.connect_ex(target)
        if error == errno.EINPROGRESS:
            answered = poll.poll(WAIT_S * 1e3)
            taken_s = (time.perf_counter_ns() - began_ns) / 1e9
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            return taken_s if answered and error in {0, errno.ECONNREFUSED} else None
        taken_s = (time.perf_counter_ns() - began_ns) / 1e9
        if error not in {0, errno.ECONNREFUSED}:
            raise OSError(error, os.strerror(error))
        return taken_s
