"""Routes whose MTU changes under a connection: packets shrink and grow with it, nothing ends."""

from __future__ import annotations

import os
import socket
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from harp.net import Engine
from lab.namespace import why_unusable
from lab.veth import Net
from tests.support.levels import long_except

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harp.net import Connection

pytestmark = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
PATIENCE_S = 30
WIDE, NARROW = 9000, 1450
HEADERS = 28  # IPv4 and UDP


class Route:
    """Two hosts with two routers between; neither host sees what the link between those takes."""

    def __init__(self, net: Net, *, icmp: bool) -> None:
        a, left, right, b = (net.namespace() for _ in range(4))
        self.near, from_near = net.connect(a, left, mtu=WIDE)
        self.middle = net.connect(left, right, mtu=WIDE)
        to_far, self.far = net.connect(right, b, mtu=WIDE)
        a.run("ip", "route", "add", "default", "via", from_near.ipv4)
        b.run("ip", "route", "add", "default", "via", to_far.ipv4)
        left.run("ip", "route", "add", "default", "via", self.middle[1].ipv4)
        right.run("ip", "route", "add", "default", "via", self.middle[0].ipv4)
        for router in (left, right):
            router.sysctl("ipv4.ip_forward", 1)
        self.silence = ExitStack()
        if not icmp:
            for end in (self.near, self.far):
                self.silence.enter_context(end.without_icmp())

    def set_mtu(self, mtu: int) -> None:
        for end in self.middle:
            end.space.run("ip", "link", "set", end.device, "mtu", str(mtu))


@contextmanager
def connected_pair(route: Route | Wire, kind: str, *,
                   streamed: int = 0) -> Iterator[tuple[Connection, Connection]]:
    """Both ends of a connection over the route."""
    with ExitStack() as stack:
        stack.enter_context(route.silence)
        with route.far.space.entered():
            far_engine = stack.enter_context(Engine(kind, interface=route.far.device))
            listener = far_engine.listen(streamed=streamed)
        with route.near.space.entered():
            near_engine = stack.enter_context(Engine(kind, interface=route.near.device))
            near = near_engine.connect(listener.handle, streamed=streamed, timeout=PATIENCE_S)
        far = listener.accept(timeout=PATIENCE_S)
        yield near, far
        near.close()
        far.close()


@contextmanager
def tcp_pair(route: Route) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The kernel's own connection over the route."""
    with route.far.space.entered():
        listener = socket.create_server((route.far.ipv4, 0))
    with listener:
        with route.near.space.entered():
            client = socket.create_connection(listener.getsockname(), timeout=PATIENCE_S)
        with client, listener.accept()[0] as server:
            yield client, server


def receive(end: Connection, size: int, *, streamed: int) -> bytes:
    if not streamed:
        return bytes(end.recv(size, timeout=PATIENCE_S))
    whole = bytearray(size)
    for chunk in end.stream(timeout=PATIENCE_S):
        with chunk:
            whole[chunk.offset:chunk.offset + len(chunk)] = bytes(chunk)
    return bytes(whole)


def transfer(near: Connection, far: Connection, *, streamed: int = 0) -> None:
    """A message each way, which must come byte for byte."""
    for sender, receiver in ((near, far), (far, near)):
        for size in (300_001, 5):
            message = os.urandom(size)
            sent = sender.send(message)
            assert receive(receiver, size, streamed=streamed) == message
            sent.wait(timeout=PATIENCE_S)


def frame_bytes(end: Connection) -> int:
    """Of the longest frames that its path carries now."""
    (path,) = end.paths
    return int(path.state["frame_bytes"])


def transfer_until_wide(near: Connection, far: Connection, whole: int, *,
                        streamed: int = 0) -> None:
    stop_s = time.monotonic() + PATIENCE_S
    while min(frame_bytes(near), frame_bytes(far)) < whole:
        assert time.monotonic() < stop_s, [end.paths for end in (near, far)]
        transfer(near, far, streamed=streamed)


@pytest.mark.parametrize("icmp", [True, False], ids=["icmp", "silent"])
@pytest.mark.parametrize("streamed", long_except([0, 256], 0), ids=["posted", "streamed"])
@pytest.mark.parametrize("kind", ["udp", "xdp"])
def test_packets_shrink_and_grow_with_the_route(kind: str, streamed: int, icmp: bool) -> None:
    with Net() as net:
        route = Route(net, icmp=icmp)
        with connected_pair(route, kind, streamed=streamed) as (near, far):
            transfer(near, far, streamed=streamed)
            whole = near.segment + 44
            assert frame_bytes(near) == frame_bytes(far) == whole > NARROW
            route.set_mtu(NARROW)
            transfer(near, far, streamed=streamed)
            assert max(frame_bytes(near), frame_bytes(far)) <= NARROW - HEADERS
            route.set_mtu(WIDE)
            transfer_until_wide(near, far, whole, streamed=streamed)
            for end in (near, far):
                counters = end.info.counters
                assert counters["pmtu_shrunk"] >= 1
                assert counters["pmtu_grown"] >= 1


@pytest.mark.parametrize("icmp", [True, False], ids=["icmp", "silent"])
@pytest.mark.parametrize("kind", ["udp", "xdp"])
def test_an_edge_that_is_narrower_than_the_first_hop(kind: str, icmp: bool) -> None:
    """An instance with an MTU of 9001 whose peer is behind an edge of 1500."""
    with Net() as net:
        route = Route(net, icmp=icmp)
        route.set_mtu(1500)
        with connected_pair(route, kind) as (near, far):
            transfer(near, far)
            assert near.segment > 1500
            assert max(frame_bytes(near), frame_bytes(far)) <= 1500 - HEADERS


@pytest.mark.parametrize("icmp", [True, False], ids=["icmp", "silent"])
@pytest.mark.parametrize("kind", ["udp", "xdp"])
def test_a_route_that_takes_less_than_most_do_ends_nothing(kind: str, icmp: bool) -> None:
    """Kernel TCP beside it goes on where ICMP reports the MTU, and sends in vain elsewhere."""
    with Net() as net:
        route = Route(net, icmp=icmp)
        with connected_pair(route, kind) as (near, far), tcp_pair(route) as (client, server):
            transfer(near, far)
            route.set_mtu(600)
            transfer(near, far)
            assert max(frame_bytes(near), frame_bytes(far)) <= 600 - HEADERS
            client.sendall(bytes(20_000))
            if icmp:
                server.settimeout(PATIENCE_S)
                assert server.makefile("rb").read(20_000) == bytes(20_000)


@pytest.mark.parametrize(("sender", "icmp"), long_except(
    [("near", True), ("far", True), ("near", False), ("far", False)],
    ("near", True), ("far", True)))
def test_a_route_that_takes_less_than_most_do_ends_no_flow(sender: str, icmp: bool) -> None:
    """The kernel goes on where ICMP tells it, and else in vain: then a flow of short segments."""
    with Net() as net:
        route = Route(net, icmp=icmp)
        with connected_pair(route, "tcp") as (near, far):
            transfer(near, far)
            route.set_mtu(600)
            ends = (near, far) if sender == "near" else (far, near)
            for _ in range(2):
                message = os.urandom(300_001)
                sent = ends[0].send(message)
                assert bytes(ends[1].recv(len(message), timeout=PATIENCE_S)) == message
                sent.wait(timeout=PATIENCE_S)


class Wire:
    """Two hosts whose cards cut super-packets, which a veth else passes whatever its MTU is."""

    def __init__(self, net: Net) -> None:
        self.near, self.far = net.connect(net.namespace(), net.namespace(), mtu=WIDE)
        self.silence = ExitStack()
        for end in (self.near, self.far):
            end.offloads({"tx-udp-segmentation": False})


@pytest.mark.parametrize("end", ["near", "far"])
def test_a_card_whose_mtu_is_lowered_ends_nothing(end: str) -> None:
    """The kernel does not send above its card's MTU; the other's card drops such frames."""
    with Net() as net:
        wire = Wire(net)
        with connected_pair(wire, "udp") as (near, far):
            transfer(near, far)
            card = wire.near if end == "near" else wire.far
            card.space.run("ip", "link", "set", card.device, "mtu", "600")
            transfer(near, far)
            assert max(frame_bytes(near), frame_bytes(far)) <= 600 - HEADERS
