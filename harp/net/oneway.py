"""One-way delays by source port: one host sends, another reports arrival times.

    sender     MAGIC, round, number of the port        from each source port in turn
    answerer   the same, and when the kernel got it    to where it came from

The answerer's kernel stamps what arrives (SO_TIMESTAMPNS), so that a late process does not
count. The two clocks need not agree: only changes of delays are used. A packet has 32
bytes of payload and an answer as many, so nothing is amplified.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from harp.net.bind import bind_if_free

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

MAGIC = b"harp one way 1\0\0"
_BODY = struct.Struct("<16sIIq")
WIRE_BYTES = 20 + 8 + _BODY.size + 38
"""Wire bytes of a probe: IPv4, UDP, payload, Ethernet with preamble and gap."""
LAST_ANSWERS_S = 0.2
_SO_TIMESTAMPNS, _TIMESPEC = 35, struct.Struct("@qq")  # asm-generic/socket.h, 64-bit machines


class Delays(NamedTuple):
    """The measured delays."""

    seconds: NDArray[np.float64]
    """Shape (rounds, ports), but for a constant; nan: nothing came back."""
    sent_packets: int
    taken_s: float
    taken_ports: tuple[int, ...]
    """Ports that another process has."""


def answer(address: str, port: int, goes_on: Callable[[], bool] = lambda: True) -> None:
    """Answer probes for as long as it ``goes_on``. Raises OSError where the port is taken."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        sock.bind((address, port))
        sock.settimeout(0.1)
        while goes_on():
            try:
                data, about, _, source = sock.recvmsg(64, 64)
            except TimeoutError:
                continue
            if len(data) == _BODY.size and data.startswith(MAGIC):
                _, number, place, _ = _BODY.unpack(data)
                sock.sendto(_BODY.pack(MAGIC, number, place, _arrived_ns(about)), source)


def _arrived_ns(about: list[tuple[int, int, bytes]]) -> int:
    for level, kind, value in about:
        if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
            seconds, rest = _TIMESPEC.unpack_from(value)
            return int(seconds * 10**9 + rest)
    return time.time_ns()


def measure_delays(source: str, target: tuple[str, int], ports: Sequence[int], *, seconds: float,
                   most_bps: float) -> Delays:
    """Send by all ports in rounds, in another order each, at ``most_bps`` at most.

    Raises OSError where nothing can be sent there.
    """
    began_s = time.monotonic()
    with ExitStack() as stack:
        sockets, taken = _open_ports(stack, source, target, ports)
        step_s = len(sockets) * WIRE_BYTES * 8 / most_bps
        rounds = int(seconds / step_s) if sockets else 0
        sent_ns = np.zeros((rounds, len(ports)), np.int64)
        found = np.full((rounds, len(ports)), np.nan)
        for number in range(rounds):
            for place in random.sample(sorted(sockets), len(sockets)):
                sent_ns[number, place] = time.time_ns()
                _send(sockets[place], _BODY.pack(MAGIC, number, place, 0))
            _collect(sockets, sent_ns, found, began_s + (number + 1) * step_s)
        _collect(sockets, sent_ns, found, time.monotonic() + LAST_ANSWERS_S)
        return Delays(found, rounds * len(sockets), time.monotonic() - began_s, taken)


def _open_ports(stack: ExitStack, source: str, target: tuple[str, int], ports: Sequence[int]
                ) -> tuple[dict[int, socket.socket], tuple[int, ...]]:
    sockets, taken = {}, []
    for place, port in enumerate(ports):
        sock = bind_if_free(stack, source, port)
        if sock is None:
            taken.append(port)
            continue
        sock.connect(target)
        sock.setblocking(False)
        sockets[place] = sock
    return sockets, tuple(taken)


def _send(sock: socket.socket, data: bytes) -> None:
    try:
        sock.send(data)
    except (BlockingIOError, ConnectionRefusedError):
        return  # it counts as lost


def _collect(sockets: dict[int, socket.socket], sent_ns: NDArray[np.int64],
             found: NDArray[np.float64], until_s: float) -> None:
    """Take answers until it is time."""
    poll = select.poll()
    by_fd = {sock.fileno(): sock for sock in sockets.values()}
    for number in by_fd:
        poll.register(number, select.POLLIN)
    while (left_s := until_s - time.monotonic()) > 0:
        for number, _ in poll.poll(left_s * 1e3):
            try:
                data = by_fd[number].recv(64)
            except (BlockingIOError, ConnectionRefusedError):
                continue
            if len(data) == _BODY.size and data.startswith(MAGIC):
                _, at, place, arrived_ns = _BODY.unpack(data)
                if at < len(found) and place in sockets:
                    found[at, place] = (arrived_ns - sent_ns[at, place]) * 1e-9
