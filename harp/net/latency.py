"""Round trips to other hosts, without privileges and with nothing running there.

A TCP connect (RFC 9293) is answered by the kernel of the other host after one round trip: by
SYN-ACK if a process listens, by RST if none does, without a rate limit (ICMP echo and "port
unreachable" are rate-limited, and the former needs privileges). The least of many is the round trip
over empty queues; it includes the time of the kernels and of this program, equal for all.

A busy host delays its probes for a while. So targets take turns: a round probes each of them once,
in a new order each time, and rounds come in blocks with pauses of random length between them (RFC
2330, section 11.1: samples that are not synchronised with anything). The number of rounds doubles
until the minima no longer fall.
"""

from __future__ import annotations

import errno
import os
import random
import select
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Address = tuple[str, int]

FIRST_ROUNDS = 200
"""Then as many again, at the least."""
MOST_ROUNDS = 6400
BLOCK_ROUNDS = 10
"""The first rounds are 20 blocks: all of them come while a host is busy that is so for four fifths
of its time with a chance of 0.8^20, 1 %; and all of the next 20 with as much."""
PAUSE_S = 0.03
"""Between blocks, in the mean: in less than a scheduler's turn of a few others."""
NEARER = 0.98
"""A minimum below this share of the one before is news: from one level of switches to the next is
1.15 at least (`harp.routing.rtt_clusters`)."""
WAIT_S = 1.0
"""Longest wait for one answer."""
GIVE_UP = 3
"""Connects in a row without an answer."""


def least_round_trips_s(source: str, targets: Sequence[Address]) -> dict[Address, float]:
    """Give the shortest time to an answer of each target, but for those that give none.

    Raises OSError if the kernel has no route; its ``filename`` is the target's address.
    """
    return least_of_rounds(targets, lambda target: _connect(source, target),
                           lambda: time.sleep(random.expovariate(1 / PAUSE_S)))


def least_of_rounds(targets: Sequence[Address], ask: Callable[[Address], float | None],
                    pause: Callable[[], None]) -> dict[Address, float]:
    """Ask in as many rounds as it takes; the least answer of each target that gives any."""
    least: dict[Address, float] = {}
    silent = dict.fromkeys(targets, 0)
    wanted, done, more = list(silent), 0, FIRST_ROUNDS
    while wanted and done < MOST_ROUNDS:
        before = dict(least)
        for number in range(more):
            if number % BLOCK_ROUNDS == 0:
                pause()
            _ask_each(wanted, ask, least, silent)
        done, more = done + more, done + more
        wanted = [target for target in wanted if silent[target] < GIVE_UP and (
            target not in before or least[target] < NEARER * before[target])]
    return least


def _ask_each(targets: Sequence[Address], ask: Callable[[Address], float | None],
              least: dict[Address, float], silent: dict[Address, int]) -> None:
    """Probe once each target that answers."""
    for target in random.sample(targets, len(targets)):
        if silent[target] < GIVE_UP:
            taken_s = ask(target)
            silent[target] = 0 if taken_s is not None else silent[target] + 1
            if taken_s is not None:
                least[target] = min(taken_s, least.get(target, taken_s))


def _connect(source: str, target: Address) -> float | None:
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
            raise OSError(error, os.strerror(error), target[0])
        return taken_s
