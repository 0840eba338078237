"""Routers on a UDP flow's path, by source port: TTL expiry, like tracepath.

A router that takes the last hop of a packet's TTL off answers with ICMP "time exceeded" (RFC 792),
and the kernel hands the answer to the socket that sent it (IP_RECVERR), without privileges. So one
packet per source port and TTL shows the flow's path, whatever hash the routers have.

Routers limit their answers: Linux sends six at once and then one a second per asking host
(icmp_ratelimit), switches police their CPU. So few probes are sent. In a Clos network flows diverge
only on the way up, and one port shows the length of the path: routers beyond its middle are not
probed (they would answer by one of several addresses, because they hash the answer). Each other hop
is probed with a few ports; if these meet one router, all do. Only where they differ is every port
probed, repeatedly until it is answered.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field

from harp.net.bind import bind_if_free

_IP_RECVERR, _ERROR, _MESSAGE = 11, struct.Struct("=IBBBxII"), b"harp probe "
_OFFENDER = slice(_ERROR.size + 4, _ERROR.size + 8)
_ICMP, _UNREACHABLE, _TIME_EXCEEDED = 2, 3, 11
SAMPLE = 6
"""Ports asked at first at each hop: as many as a Linux router answers at once. With two next
hops all six flows take the same one once in 32 times; with four, once in 1024."""
MOST_HOPS = 8
WAIT_S = 0.25
"""Wait for answers to a packet before it is sent again."""
PATIENCE = 5
"""Packets without any answer, after which a router is taken to be silent: a Linux router at its
limit answers within a second, which is four waits."""
SILENT = 2
"""Silent routers in a row that end the path, if the target is silent too."""
CHECKED = 4
"""Ports that are asked a second time, to see whether a flow stays on its path."""


@dataclass
class Trace:
    """The paths to one target.

    ``routers`` has the addresses on the path of each source port, None for a silent router.
    ``alike`` is the share of ports asked twice that were answered by the same router both times:
    below 1 the network sprays packets, and ports do not select paths.
    """

    routers: dict[int, tuple[str | None, ...]]
    alike: float = 1.0
    seconds: float = 0.0
    sent_packets: int = 0
    unanswered: tuple[int, ...] = ()
    """Ports without an answer at a hop where paths diverge; they are not in ``routers``."""
    taken: tuple[int, ...] = ()
    """Ports that another process has."""

    @property
    def answered(self) -> bool:
        """Whether any router on a path has answered: silent ones alone tell no paths apart."""
        return any(router is not None for routers in self.routers.values() for router in routers)

    @property
    def classes(self) -> dict[tuple[str | None, ...], list[int]]:
        """Source ports by the routers that they pass."""
        found: dict[tuple[str | None, ...], list[int]] = defaultdict(list)
        for port, routers in sorted(self.routers.items()):
            found[routers].append(port)
        return dict(found)


@dataclass
class _Asker:
    """Sockets at the source ports, and what they send to one target."""

    target: tuple[str, int]
    sockets: dict[int, socket.socket] = field(default_factory=dict)
    sent: int = 0

    def ask(self, ports: list[int], ttl: int, until_s: float) -> dict[int, str]:
        """Ask for the routers that end packets of this TTL, until all answer or time is up."""
        answers: dict[int, str] = {}
        tries = 0
        while len(answers) < len(ports) and time.monotonic() < until_s:
            missing = [port for port in ports if port not in answers]
            random.shuffle(missing)  # a router answers those that come first
            for port in missing:
                self._send(port, ttl)
            answers.update(self._collect(missing, ttl))
            tries += 1
            if not answers and tries == PATIENCE:
                break
        return answers

    def _send(self, port: int, ttl: int) -> None:
        sock = self.sockets[port]
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
        try:
            sock.sendto(_MESSAGE + bytes([ttl]), self.target)
        except ConnectionRefusedError:
            return  # an answer to an earlier packet, which is in the queue
        self.sent += 1

    def _collect(self, ports: list[int], ttl: int) -> dict[int, str]:
        """Take what comes within a wait, or until each port has been answered."""
        answers: dict[int, str] = {}
        until_s = time.monotonic() + WAIT_S
        poll = select.poll()
        by_fd = {self.sockets[port].fileno(): port for port in ports}
        for number in by_fd:
            poll.register(number, select.POLLERR)
        while len(answers) < len(ports) and (left_s := until_s - time.monotonic()) > 0:
            for number, _ in poll.poll(left_s * 1e3):
                router = _take_answer(self.sockets[by_fd[number]], ttl)
                if router is not None:
                    answers[by_fd[number]] = router
        return answers


def trace(source: str, target: tuple[str, int], ports: list[int], *,
          budget_s: float = 10.0) -> Trace:
    """Find the paths of UDP flows from ``source`` and each of ``ports`` to ``target``.

    Takes ``budget_s`` at most. Raises OSError where nothing can be sent there.
    """
    began_s = time.monotonic()
    with ExitStack() as stack:
        asker, taken = _Asker(target), []
        for port in ports:
            sock = bind_if_free(stack, source, port)
            if sock is None:
                taken.append(port)
                continue
            sock.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
            asker.sockets[port] = sock
        found = _trace_all(asker, target[0], began_s + budget_s)
    found.seconds, found.sent_packets = time.monotonic() - began_s, asker.sent
    found.taken = tuple(taken)
    return found


def _trace_all(asker: _Asker, target: str, until_s: float) -> Trace:
    ports = list(asker.sockets)
    known = _walk_one(asker, ports[0], target, until_s) if ports else []
    passed: dict[int, list[str | None]] = {port: [] for port in ports}
    parts: list[int] = []  # hops at which paths diverge
    for ttl, first in enumerate(known[:(len(known) + 1) // 2], 1):
        sample = [port for port in list(passed)[:SAMPLE] if port != ports[0]]
        answers = asker.ask(sample, ttl, until_s)
        if first is not None:
            answers[ports[0]] = first
        if target in answers.values():
            break  # its answer to the first port came too late to end the walk
        routers = set(answers.values())
        if len(routers) > 1:
            parts.append(ttl)
            answers |= asker.ask([port for port in passed if port not in answers], ttl, until_s)
            passed = {port: path for port, path in passed.items() if port in answers}
        only = routers.pop() if len(routers) == 1 else None
        for port, path in passed.items():
            path.append(answers.get(port, only))
    return Trace({port: tuple(path) for port, path in passed.items()},
                 _share_alike(asker, passed, parts, until_s),
                 unanswered=tuple(port for port in ports if port not in passed))


def _walk_one(asker: _Asker, port: int, target: str, until_s: float) -> list[str | None]:
    """Routers on the path of one port; None for a silent one."""
    routers: list[str | None] = []
    while len(routers) < MOST_HOPS and routers[-SILENT:] != [None] * SILENT:
        routers.append(asker.ask([port], len(routers) + 1, until_s).get(port))
        if routers[-1] == target:
            return routers[:-1]
    while routers and routers[-1] is None:
        routers.pop()
    return routers


def _share_alike(asker: _Asker, passed: dict[int, list[str | None]], parts: list[int],
                 until_s: float) -> float:
    """Probe some ports again where paths diverge."""
    if not parts or not passed:
        return 1.0
    again = asker.ask(random.sample(list(passed), min(CHECKED, len(passed))), parts[0], until_s)
    alike = [router == passed[port][parts[0] - 1] for port, router in again.items()]
    return sum(alike) / len(alike) if alike else 1.0


def _take_answer(sock: socket.socket, ttl: int) -> str | None:
    """Take one ICMP error from the socket's queue: its sender, if it is about this TTL."""
    try:
        data, about, _, _ = sock.recvmsg(64, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
    except OSError:
        return None
    for level, kind, value in about:
        if (level, kind) != (socket.IPPROTO_IP, _IP_RECVERR) or len(value) < _OFFENDER.stop:
            continue
        _, origin, icmp, _, _, _ = _ERROR.unpack_from(value)
        # A router quotes at least the UDP header; what it quotes beyond says which packet it was.
        of_this = not data or data == _MESSAGE + bytes([ttl])
        if origin == _ICMP and icmp in {_UNREACHABLE, _TIME_EXCEEDED} and of_this:
            return socket.inet_ntoa(value[_OFFENDER])
    return None
