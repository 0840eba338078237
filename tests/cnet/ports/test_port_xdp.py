"""The xdp port between network namespaces: what arrives, what stays the kernel's."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct

import pytest

from lab.bpf import attach_xdp_again
from lab.c_programs import build, library, run
from lab.namespace import why_unusable
from lab.veth import Net, veth_pair
from tests.cnet.ports.xdp_peers import (
    Peer,
    build_peer,
    ethernet_socket,
    meet,
    numbers,
    own,
    pattern,
)
from tests.support import PATIENCE_S

pytestmark = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build_peer(tmp_path_factory)


@pytest.mark.parametrize("how", ["send", "frames", "lengthened"])
@pytest.mark.parametrize("family", [4, 6])
def test_datagrams_both_ways(program, family, how):
    with veth_pair() as (a, b), Peer(program, a, own(a, family)) as x, \
            Peer(program, b, own(b, family), "locals=3") as y:
        most = 1472 if family == 4 else 1452
        assert x.payload == most
        meet(x, y)
        hops = [x.hop(address) for address in y.locals]
        back = [y.hop(x.locals[0], local) for local in range(3)]
        for size in (8, 9, 10, 11, 100, 1000, most):
            for hop in hops:
                x.send(hop, 70, size, how)
            got = y.receive(210)
            assert (got["received"], got["strays"]) == (210, 0)
            for hop in back:
                y.send(hop, 70, size, how)
            assert x.receive(210)["received"] == 210


def test_line_says_how(program):
    with veth_pair() as (a, b), Peer(program, a, "copy") as x, Peer(program, b) as y:
        assert x.line == "xdp: v1 queue 0, copy mode (as it was asked for)"
        assert y.line == "xdp: v1 queue 0, copy mode (zero copy: Operation not supported)"
        meet(x, y)
        x.send(0, 500, 1472)
        got = y.receive(500)
        assert (got["received"], got["strays"]) == (500, 0)


def test_a_refused_socket_says_what_refuses_it(tmp_path):
    run(build(tmp_path / "refused", ["tests/cnet/ports/test_xdp_refused.c", str(library())]))


def test_a_driver_without_xdp_is_named(program):
    with Net() as net:
        host = net.namespace()
        host.run("ip", "link", "add", "br0", "up", "type", "bridge")
        host.run("ip", "address", "add", "10.0.0.1/24", "dev", "br0")
        said = host.run(program, "xdp", "br0").splitlines()[0]
    assert said == (f"error -{errno.EOPNOTSUPP}: no XDP program can be attached to br0: Operation "
                    "not supported: its driver has none; use tcp or udp")


@pytest.mark.parametrize("family", [4, 6])
def test_a_udp_socket_at_the_other_end(program, family):
    """Checksums, too, hold before the kernel."""
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    with veth_pair() as (a, b), Peer(program, a, own(a, family)) as x:
        with b.space.entered():
            there = socket.socket(kind, socket.SOCK_DGRAM)
        with there:
            there.bind((b.ipv4 if family == 4 else b.ipv6, 0))
            there.settimeout(60)
            port = there.getsockname()[1]
            hop = x.hop(f"{b.ipv4}:{port}" if family == 4 else f"[{b.ipv6}]:{port}")
            x.send(hop, 1, 100)
            assert there.recv(2000) == pattern(0, 100)
            x.do("tend 1")
            for number, size in enumerate((8, 9, 10, 11, 13, 999, 1452), start=1):
                x.send(hop, 1, size)
                data, address = there.recvfrom(2000)
                assert data == pattern(number, size)
                there.sendto(data, address)
                got = x.receive(1)
                assert (got["received"], got["strays"]) == (1, 0)


def test_packets_from_another_device_pass_to_the_kernel(program):
    """A virtual interface may hand the program down: netvsc to its virtual function."""
    with Net() as net:
        here, there = net.namespace(), net.namespace()
        _, above = net.connect(here, there)
        side, below = net.connect(here, there)
        with Peer(program, above, own(above)) as peer:
            shown = json.loads(there.run("ip", "-json", "link", "show", "dev", above.device))
            handed_down = attach_xdp_again(below.space, below.device, shown[0]["xdp"]["prog"]["id"])
            host, port = peer.locals[0].split(":")
            here.run("ip", "route", "add", host, "via", below.ipv4, "dev", side.device)
            with here.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                for number in range(20):
                    sender.sendto(pattern(number, 100), (host, int(port)))
            got = peer.receive(20)
            assert (got["received"], got["strays"]) == (20, 20)
            for fd in handed_down:
                os.close(fd)


@pytest.mark.parametrize("family", [4, 6])
def test_a_udp_port_at_the_other_end(program, family):
    with veth_pair() as (a, b), Peer(program, a, own(a, family)) as x, \
            Peer(program, b, own(b, family), kind="udp") as y:
        meet(x, y)
        x.send(0, 100, 1452)
        assert y.receive(100)["received"] == 100
        for _ in range(10):
            y.send(0, 10, 1400)
            got = x.receive(10)
            assert (got["received"], got["strays"]) == (10, 0)


def frame(a, b, to_port, payload, tag=None, fragment=0x4000, options=b"", ecn=0):
    ip_length = 20 + len(options) + 8 + len(payload)
    ip = struct.pack(">BBHHHBBH4s4s", 0x45 + len(options) // 4, ecn, ip_length, 0, fragment, 64, 17,
                     0, socket.inet_aton(a.ipv4), socket.inet_aton(b.ipv4)) + options
    total = sum(struct.unpack(f">{len(ip) // 2}H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    total = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    ip = ip[:10] + struct.pack(">H", total) + ip[12:]
    udp = struct.pack(">HHHH", 7, to_port, 8 + len(payload), 0)
    macs = bytes.fromhex((b.mac + a.mac).replace(":", ""))
    tagged = b"" if tag is None else struct.pack(">HH", 0x8100, tag)
    return macs + tagged + b"\x08\x00" + ip + udp + payload


def test_tags_marks_options_and_fragments(program):
    """VLAN 0 is the interface's own; what the program cannot read the kernel can."""
    with veth_pair() as (a, b), Peer(program, b) as y, ethernet_socket(a) as raw:
        to_port = int(y.locals[0].rpartition(":")[2])
        raw.send(frame(a, b, to_port, pattern(1, 100), tag=0xE000))  # priority 7
        assert y.receive(1) == {"received": 1, "strays": 0, "marked": 0, "kept": 0}
        raw.send(frame(a, b, to_port, pattern(2, 100), tag=0x0005))
        raw.send(frame(a, b, to_port, pattern(3, 18), ecn=3) + bytes(64))  # padded
        assert y.receive(1) == {"received": 1, "strays": 0, "marked": 1, "kept": 0}
        raw.send(frame(a, b, to_port, pattern(4, 100), options=bytes(3) + b"\x01", ecn=3))
        assert y.receive(1) == {"received": 1, "strays": 1, "marked": 1, "kept": 0}
        whole = frame(a, b, to_port, pattern(5, 100))
        for offset, some, rest in ((0, 96, 0x2000), (96, 12, 0)):
            head = frame(a, b, to_port, bytes(some - 8), fragment=rest | offset // 8)[:34]
            raw.send(head + whole[34 + offset:34 + offset + some])
        assert y.receive(1)["strays"] == 1


def test_packets_that_are_not_what_they_say(program):
    """Lengths that lie, and packets cut anywhere, are dropped and lose no frame."""
    with veth_pair() as (a, b), Peer(program, b) as y, ethernet_socket(a) as raw:
        to_port = int(y.locals[0].rpartition(":")[2])
        good = frame(a, b, to_port, pattern(1, 100))
        for cut in range(14, len(good)):
            raw.send(good[:cut])
        for at, value in ((16, b"\xff\xff"), (16, b"\x00\x14"), (38, b"\xff\xff"), (38, b"\0\0")):
            raw.send(good[:at] + value + good[at + 2:])
        raw.send(good)
        assert y.receive(1) == {"received": 1, "strays": 0, "marked": 0, "kept": 0}


def ping(end, to, family, protocol, request, reply):
    with end.space.entered():
        raw = socket.socket(family, socket.SOCK_RAW, protocol)
    echo = struct.pack(">BBHHH", request, 0, 0xFFFF - (request << 8) - 3 - 4, 3, 4)
    raw.settimeout(60)
    with raw:
        raw.sendto(echo, (to, 0))
        for _ in range(10):  # neighbours are asked for by ICMPv6, too
            if raw.recv(1000)[-8] == reply:
                return
    pytest.fail(f"no reply from {to}")


def test_everything_else_is_the_kernels(program):
    with veth_pair() as (a, b), Peer(program, a), Peer(program, b) as y:
        ping(a, b.ipv4, socket.AF_INET, socket.IPPROTO_ICMP, 8, 0)
        ping(a, b.ipv6, socket.AF_INET6, socket.IPPROTO_ICMPV6, 128, 129)
        with b.space.entered():
            listener = socket.create_server((b.ipv4, 0))
            other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        other.bind((b.ipv4, 0))
        other.settimeout(60)
        with a.space.entered():
            here = socket.create_connection(listener.getsockname(), timeout=PATIENCE_S)
            udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        there, _ = listener.accept()
        with listener, here, there, udp, other:
            here.sendall(bytes(200_000))
            left = 200_000
            while left:
                left -= len(there.recv(left))
            udp.sendto(b"other port", other.getsockname())
            assert other.recv(100) == b"other port"
        # HARP's port at another of the host's addresses is not HARP's.
        b.space.run("ip", "address", "add", "10.0.1.77/24", "dev", b.device)
        port = int(y.locals[0].rpartition(":")[2])
        with b.space.entered():
            other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with a.space.entered():
            udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with other, udp:
            other.bind(("10.0.1.77", port))
            other.settimeout(60)
            udp.sendto(b"other address", ("10.0.1.77", port))
            assert other.recv(100) == b"other address"


def test_further_locals(program):
    """They are the queue's as the first are; half of the descriptors stay the application's."""
    with veth_pair() as (a, b), Peer(program, a) as x, \
            Peer(program, b, before=("prlimit", "--nofile=64")) as y:
        meet(x, y)
        made = y.do("local").split()
        assert made[:2] == ["local", "1"]
        assert x.hop(made[2]) == 1
        back = y.hop(x.locals[0], 1)
        x.send(1, 50, 1000)
        y.send(back, 50, 1000)
        for peer in (x, y):
            got = peer.receive(50)
            assert (got["received"], got["strays"]) == (50, 0)
        for there, most, error in ((y, 32, errno.EMFILE), (x, 256, errno.ENOSPC)):
            answers = [there.do("local") for _ in range(256)]
            assert answers[-1].startswith(f"error -{error}: ")
            assert 10 < sum(answer.startswith("local ") for answer in answers) < most
        x.send(1, 50, 1000)
        assert y.receive(50)["strays"] == 0


def test_a_wrong_queue_is_late_and_not_lost(program):
    with veth_pair(queues=2) as (a, b), Peer(program, a, "queue=0") as x, \
            Peer(program, b, "queue=1") as y:
        meet(x, y)
        x.send(0, 200, 1200)
        got = y.receive(200)
        assert (got["received"], got["strays"]) == (200, 200)
        assert numbers(y.do("counters"))["strays"] >= 200


@pytest.mark.parametrize("locals_n", [1, 3])
def test_strays_are_looked_for_each_turn_while_they_come(program, locals_n):
    """Not only when the engine tends its ports; and when they stop, a turn costs no call again."""
    with veth_pair(queues=2) as (a, b), Peer(program, a, "queue=0") as x, \
            Peer(program, b, "queue=1", f"locals={locals_n}") as y:
        meet(x, y)
        x.send(0, 1, 100)
        assert y.receive(1)["strays"] == 1
        hops = [x.hop(address) for address in y.locals]
        for _ in range(5):
            for hop in hops:
                x.send(hop, 200, 1200)
            left, tries = 200 * locals_n, 1000
            while left and tries:
                left -= numbers(y.do("turns 100 1"))["received"]
                tries -= 1
            assert left == 0
        assert numbers(y.do("turns 1000 100")) == {"received": 0, "calls": 0}


def test_to_this_host_itself(program):
    with veth_pair(queues=2) as (a, _), Peer(program, a) as x, Peer(program, a) as y:
        meet(x, y)
        x.send(0, 20, 1472)
        assert y.receive(20)["strays"] == 20


@pytest.mark.parametrize("family", [4, 6])
def test_a_packet_has_one_frame_whatever_the_mtu(program, family):
    with veth_pair(mtu=9000) as (a, b), Peer(program, a, own(a, family)) as x, \
            Peer(program, b, own(b, family)) as y:
        most = 4096 - 256 - 42 - 18 - (28 if family == 4 else 48)  # what kernel and headers take
        assert x.payload == most
        meet(x, y)
        for size in (100, most):
            x.send(0, 60, size)
            got = y.receive(60)
            assert (got["received"], got["strays"]) == (60, 0)
        x.send(0, 50, 3500, "frames")
        y.send(0, 50, most)
        assert y.receive(50)["received"] == x.receive(50)["received"] == 50


def test_time_in_the_ring_is_reported(program):
    with veth_pair() as (a, b), Peer(program, a) as x, Peer(program, b) as y:
        meet(x, y)
        x.send(0, 10, 1000)  # they are there before anybody looks
        waited = int(y.do("receive 10 10000").rpartition("=")[2])
        assert 0 < waited < 1e9


def test_busy_polling(program):
    with veth_pair() as (a, b), Peer(program, a, "poll=20") as x, \
            Peer(program, b, "poll=20") as y:
        assert x.line.endswith(", busy polling")
        meet(x, y)
        for _ in range(20):
            x.send(0, 50, 1000)
            assert y.receive(50)["strays"] == 0


def test_more_than_the_rings_hold(program):
    """Frames beyond the room are lost; the rest is whole, and the rings go on."""
    with veth_pair() as (a, b), Peer(program, a) as x, Peer(program, b, "fill=128") as y:
        meet(x, y)
        x.send(0, 5000, 1000)
        got = y.receive(5000, ms=300)
        assert 64 <= got["received"] < 5000
        x.send(0, 100, 1000)
        assert y.receive(100)["received"] == 100


def test_copy_mode_takes_no_more_frames_than_a_cache_holds(program):
    with veth_pair() as (a, b), Peer(program, a) as x, Peer(program, b, "fill=2048") as y:
        assert "copy mode" in x.line
        assert x.states()["FILL"] == 512
        assert y.states()["FILL"] == 2048


def test_frames_that_the_application_keeps(program):
    with veth_pair() as (a, b), Peer(program, a) as x, Peer(program, b, "frames=1024") as y:
        meet(x, y)
        assert y.do("keep 4000") == "done"
        for _ in range(30):
            x.send(0, 50, 1000)
            y.receive(50, ms=20)
        states = y.states()
        assert states["LENT"] > 500
        assert states["FREE"] == 0
        assert states["FILL"] == 0
        assert y.do("give") == "done"
        y.do("receive 1 20")
        x.send(0, 50, 1000)
        assert y.receive(50)["received"] == 50


def test_closed_while_frames_are_in_flight(program):
    with veth_pair() as (a, b), Peer(program, b) as y:
        for _ in range(3):
            with Peer(program, a) as x:
                x.send(x.hop(y.locals[0]), 300, 1472)
                x.send(0, 300, 1472, "frames")
            y.do("receive 600 1")
