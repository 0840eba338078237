"""The traffic class of a connection is in the IP header of each of its packets, both ways."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from harp.net import Engine
from lab.namespace import why_unusable
from lab.nccl_pair import client, harp, run_pair
from lab.veth import End, veth_pair
from tests.support import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())

IP, IPV6, UDP, ALL = 0x0800, 0x86DD, 17, 3
AF21, EF = 18 << 2, 46 << 2  # RFC 2597, RFC 3246
ECT0 = 2  # RFC 3168
MESSAGE = bytes(100_000)


class Capture:
    """UDP packets that leave and arrive at an end."""

    def __init__(self, end: End) -> None:
        with end.space.entered():
            self.tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ALL))
        self.tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        self.tap.bind((end.device, ALL))
        self.tap.setblocking(False)

    def classes(self) -> dict[bool, set[int]]:
        """Traffic classes with ECN's bits that came, and that left (True)."""
        found: dict[bool, set[int]] = {False: set(), True: set()}
        while True:
            try:
                packet, (_, kind, direction, *_) = self.tap.recvfrom(128)
            except BlockingIOError:
                return found
            leaves = direction == socket.PACKET_OUTGOING
            if kind == IP and packet[9] == UDP:
                found[leaves].add(packet[1])
            elif kind == IPV6 and packet[6] == UDP:
                found[leaves].add((packet[0] & 15) << 4 | packet[1] >> 4)


@contextmanager
def capturing(end: End) -> Iterator[Capture]:
    capture = Capture(end)
    try:
        yield capture
    finally:
        capture.tap.close()


@pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize(("connects", "listens"), [("udp", "udp"), ("xdp", "udp"), ("udp", "xdp")])
def test_both_ends_use_the_class_of_the_connecting_one(
        connects: str, listens: str, ipv6: bool) -> None:
    # Packets of an AF_XDP socket pass no tap of its own host: the other end looks.
    with veth_pair() as ends, capturing(ends[listens == "udp"]) as capture:
        engines = []
        for kind, end in zip((connects, listens), ends, strict=True):
            with end.space.entered():
                engines.append(Engine(kind, interface=end.device, locals=2,
                                      address=end.ipv6 if ipv6 else end.ipv4))
        near_engine, far_engine = engines
        with far_engine.listen(paths=2) as listener, ends[0].space.entered():
            near = near_engine.connect(listener.handle, timeout=PATIENCE_S, paths=2,
                                       traffic_class=EF | 1)
            far = listener.accept(timeout=PATIENCE_S)
        for sends, takes in ((near, far), (far, near)):
            posted = takes.post(bytearray(len(MESSAGE)))
            sends.send(MESSAGE).wait(20)
            posted.wait(20)
        assert capture.classes() == {False: {EF | ECT0}, True: {EF | ECT0}}
        near_engine.close()
        far_engine.close()


def test_connections_of_one_engine_differ() -> None:
    with veth_pair() as (a, b), capturing(b) as capture:
        with b.space.entered():
            far_engine = Engine("udp", interface=b.device)
        with a.space.entered():
            near_engine = Engine("udp", interface=a.device)
        listener = far_engine.listen()
        with a.space.entered():
            nears = [near_engine.connect(listener.handle, timeout=PATIENCE_S,
                                         traffic_class=traffic_class)
                     for traffic_class in (0, AF21, EF)]
        fars = [listener.accept(timeout=PATIENCE_S) for _ in nears]
        posted = [far.post(bytearray(len(MESSAGE))) for far in fars]
        for done in [near.send(MESSAGE) for near in nears] + posted:
            done.wait(20)
        wanted = {ECT0, AF21 | ECT0, EF | ECT0}
        assert capture.classes() == {False: wanted, True: wanted}
        near_engine.close()
        far_engine.close()


@pytest.mark.parametrize(("version", "options", "wanted"), [
    (12, (), {AF21}), (12, ("--traffic-class", str(EF)), {EF}), (10, ("--traffic-class", "0"), {0}),
    (9, (), {AF21})])
def test_nccls_own_class_wins_over_the_setting(
        version: int, options: tuple[str, ...], wanted: set[int]) -> None:
    with veth_pair() as (a, b), capturing(b) as capture:
        ended = run_pair(client(), harp(), ("fifo",), spaces=(a.space, b.space),
                         options=("--version", str(version), "--largest", "65536", *options),
                         settings={"HARP_PORT": "udp", "HARP_TRAFFIC_CLASS": str(AF21)})
        assert ended.good, str(ended)
        marked = {one | ECT0 for one in wanted}
        assert capture.classes() == {False: marked, True: marked}
