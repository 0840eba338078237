"""Hosts of the laboratory let acknowledgments go before their own data, those of either stack."""

from __future__ import annotations

import socket
from contextlib import closing, suppress

import pytest

from harp._cnet import lib
from harp.routing.hashes import ROCE_PORT
from lab.namespace import why_unusable
from lab.wiring import Wiring
from tests.support.cluster_files import cluster

pytestmark = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())

FABRIC = {"template": "leaf-spine", "leaves": 1, "spines": 1, "rate": "1Gbps"}
DATAGRAMS, BYTES = 100, 1400
"""More than a second's worth at a thousandth of 1 Gb/s."""


def frame(kind, nbytes):
    """Bytes that begin as a HARP frame of this type does."""
    return bytes([lib.HARP_VERSION, kind]).ljust(nbytes, b"\0")


@pytest.fixture
def wiring(tmp_path):
    made = cluster(tmp_path, hosts=2, gpus=1, fabric=FABRIC, nic={"rate": "1Gbps"})
    with closing(Wiring(made.fabric, 1e-3, 1500)) as wired:
        yield wired


def bound(wiring, host, kind, port=ROCE_PORT):
    with wiring.hosts[host].entered():
        sock = socket.socket(socket.AF_INET, kind)
    sock.settimeout(60)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    sock.bind((wiring.addresses(host)[0], port))
    return sock


def fill_queue(sock, there):
    for _ in range(DATAGRAMS):
        sock.sendto(frame(lib.HARP_DATA, BYTES), there)


def waiting(sock):
    """How many datagrams have come."""
    sock.setblocking(False)
    came = []
    with suppress(BlockingIOError):
        while True:
            came.append(sock.recv(BYTES))
    return len(came)


def test_an_ack_of_harp_overtakes_the_data_of_its_host(wiring):
    with bound(wiring, 0, socket.SOCK_DGRAM) as near, bound(wiring, 1, socket.SOCK_DGRAM) as far:
        fill_queue(near, far.getsockname())
        near.sendto(frame(lib.HARP_ACK, 60), far.getsockname())
        types = [far.recv(BYTES)[1] for _ in range(DATAGRAMS + 1)]
        assert types.index(lib.HARP_ACK) < DATAGRAMS / 2


def test_a_small_frame_with_data_keeps_its_place(wiring):
    with bound(wiring, 0, socket.SOCK_DGRAM) as near, bound(wiring, 1, socket.SOCK_DGRAM) as far:
        fill_queue(near, far.getsockname())
        near.sendto(frame(lib.HARP_DATA, 60), far.getsockname())
        sizes = [len(far.recv(BYTES)) for _ in range(DATAGRAMS + 1)]
        assert sizes.index(60) == DATAGRAMS


def test_headers_of_tcp_overtake_the_data_of_their_host(wiring):
    with (bound(wiring, 0, socket.SOCK_DGRAM) as near, bound(wiring, 1, socket.SOCK_DGRAM) as far,
          bound(wiring, 0, socket.SOCK_STREAM, 0) as first,
          bound(wiring, 0, socket.SOCK_STREAM, 0) as second,
          bound(wiring, 1, socket.SOCK_STREAM) as listening):
        listening.listen()
        first.connect(listening.getsockname())  # neighbours know one another's addresses after it
        fill_queue(near, far.getsockname())
        second.connect(listening.getsockname())
        assert waiting(far) < DATAGRAMS / 2
