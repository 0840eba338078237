"""A network card that several processes share, and what happens when they die."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from lab.bpf import call_bpf
from lab.namespace import why_unusable
from lab.veth import veth_pair
from tests.cnet.ports.xdp_peers import Peer, build_peer, meet, numbers, pattern

pytestmark = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build_peer(tmp_path_factory)


def program_of(end):
    shown = end.space.run("ip", "link", "show", end.device)
    return "xdp" in shown.split("mtu")[1]


def test_eight_processes_share_a_card(program):
    """The process that attached the program may die: the others go on; the last leaves nothing."""
    with veth_pair(queues=8) as (a, b):
        xs = [Peer(program, a) for _ in range(8)]
        ys = [Peer(program, b) for _ in range(8)]
        assert sorted(re.findall(r"queue (\d)", "".join(y.line for y in ys))) == list("01234567")
        assert ["(shared)" in y.line for y in ys] == [False] + 7 * [True]
        full = Peer(program, b)
        assert full.opened == ("error -16: all 8 queues of v1 are taken by other AF_XDP sockets: "
                               "give it more (ethtool -L), or run fewer processes on it")
        for x, y in zip(xs, ys, strict=True):
            meet(x, y)
        ys[0].kill()
        xs[3].kill()
        for i in (1, 2, 4, 5, 6, 7):
            xs[i].send(0, 100, 1000)
            got = ys[i].receive(100)
            assert (got["received"], got["strays"]) == (100, 0)
        # The queue is free for the next, at the very port of the dead.
        with Peer(program, b, f"local={ys[0].locals[0]}") as again:
            assert "queue 0" in again.line
            xs[0].send(0, 100, 1000)
            got = again.receive(100)
            assert (got["received"], got["strays"]) == (100, 0)
        for peer in (*xs, *ys):
            peer.kill()
        for end in (a, b):
            assert_nothing_is_left(program, end)


def assert_nothing_is_left(program, end):
    """A link goes some milliseconds after its last descriptor; a new process has to wait for it."""
    with Peer(program, end) as alone:
        assert "(shared)" not in alone.line
    for _ in range(1000):
        if not program_of(end):
            return
    pytest.fail(end.space.run("ip", "link", "show", end.device))


def test_all_come_and_go_at_once(program):
    """Any process may be first, also one that comes while the last one goes."""
    with veth_pair(queues=4) as (a, _), ThreadPoolExecutor(4) as at_once:
        for _ in range(3):
            peers = list(at_once.map(lambda _: Peer(program, a), range(4)))
            queues = [re.search(r"queue (\d)", peer.line)[1] for peer in peers]
            assert sorted(queues) == list("0123")
            assert sum("(shared)" in peer.line for peer in peers) >= 3
            for peer in peers:
                peer.process.kill()


def test_a_port_of_the_dead_is_the_kernels(program):
    """An entry that a killed process left must not take a stranger's traffic."""
    with veth_pair(queues=2) as (a, b), Peer(program, a, "queue=0") as x:
        first, second = Peer(program, b, "queue=0"), Peer(program, b, "queue=1")
        port = int(first.locals[0].rpartition(":")[2])
        first.kill()
        with Peer(program, b, "queue=0"), second, b.space.entered():
            there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            with there:
                there.bind((b.ipv4, port))
                there.settimeout(10)
                x.send(x.hop(f"{b.ipv4}:{port}"), 1, 100)
                assert there.recv(2000) == pattern(0, 100)
                x.do("tend 1")
                x.send(0, 1, 100)
                assert there.recv(2000) == pattern(1, 100)


def test_a_child_of_fork_does_not_keep_the_card(program):
    with veth_pair() as (a, b), Peer(program, b) as y:
        x = Peer(program, a)
        meet(x, y)
        child = numbers(x.do("fork"))["child"]
        try:
            x.send(0, 100, 1000)
            assert y.receive(100)["received"] == 100
            x.kill()
            with Peer(program, a) as again:  # the child lives on
                assert "queue 0" in again.line
                assert "(shared)" not in again.line
        finally:
            os.kill(child, signal.SIGKILL)


# Capabilities that the manifests of deploy/ grant.
POD = ("setpriv", "--bounding-set", "-all,+net_raw,+net_admin,+bpf,+ipc_lock", "--inh-caps=-all")


def queue_of(peer):
    """Return the number of the queue that a peer says it took."""
    return re.search(r"queue (\d+)", peer.line)[1]


def test_processes_without_sys_admin_share_a_card(program):
    """The first hands over what the others may not open, and so does any other when it is gone."""
    with veth_pair(queues=4) as (a, b):
        first = Peer(program, b, before=POD)
        first.tell("serve")
        second = Peer(program, b, before=POD)
        assert "queue 1" in second.line
        assert "(shared)" in second.line
        first.kill()
        second.tell("serve")
        with Peer(program, b, before=POD) as third, \
                Peer(program, a, f"queue={queue_of(third)}") as x, \
                Peer(program, a, "queue=1") as z:
            # Which queue it is, 0 or 2, the kernel decides: it frees a killed socket's queue later.
            assert "(shared)" in third.line
            assert second.do("tend 1") == "done"  # of serve
            assert second._read() == "done"
            for here, there in ((x, third), (z, second)):
                meet(here, there)
                here.send(0, 100, 1000)
                got = there.receive(100)
                assert (got["received"], got["strays"]) == (100, 0)
        second.close()
        assert_nothing_is_left(program, b)


ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
    asking.settimeout(10)
    asking.connect(chr(0) + "harp_xdp_1/" + sys.argv[1] + "/0")
    print(*socket.recv_fds(asking, 1, 8)[:2])
"""


@pytest.mark.parametrize(("user", "answer"), [(0, "b'\\x00' [4, 5, 6, 7]"), (65534, "b'' []")])
def test_another_user_gets_no_descriptor(program, user, answer):
    with veth_pair() as (_, b), Peer(program, b) as y:
        with b.space.entered():
            index = str(socket.if_nametoindex(b.device))
        y.tell("serve")
        said = b.space.run("setpriv", f"--reuid={user}", sys.executable, "-c", ASK, index)
        assert said.strip() == answer
        assert y.do("tend 1") == "done"
        assert y._read() == "done"


def other_program(end):
    """Let another program than HARP's stand at the interface; returns what closes it."""
    code = ctypes.create_string_buffer(bytes.fromhex("b700000002000000" "9500000000000000"), 16)
    licence = ctypes.create_string_buffer(b"GPL")
    loaded = call_bpf(5, struct.pack("IIQQ24x16sII40x", 6, 2, ctypes.addressof(code),
                                 ctypes.addressof(licence), b"somebody", 0, 37))
    with end.space.entered():
        index = socket.if_nametoindex(end.device)
        return call_bpf(28, struct.pack("IIII16x", loaded, index, 37, 0)), loaded


def test_what_cannot_be_opened(program):
    def sentence(end, *words, before=()):
        return Peer(program, end, *words, before=before).opened

    with veth_pair() as (a, b), Peer(program, a) as x:
        assert sentence(a, "queue=0").endswith(
            "queue 0 of v1 is taken by another AF_XDP socket: choose another, or -1 for any")
        assert "(is there such a queue?)" in sentence(a, "queue=7")
        assert sentence(b, "local=10.0.1.9:0").endswith(
            "no UDP socket can be bound to 10.0.1.9: Cannot assign requested address")
        assert sentence(b, "frames=100").startswith("error -105: the xdp port needs")
        taken = x.locals[0]
        assert sentence(a, f"local={taken}").endswith(
            f"no UDP socket can be bound to {taken}: Address already in use: choose another port, "
            "or 0 for any")
        a.space.run("ip", "link", "set", a.device, "down")
        assert sentence(a).endswith("v1 is down: ip link set v1 up")
        a.space.run("ip", "link", "set", a.device, "up")
        assert "does not answer: it is stopped, or nobody drives it" in sentence(a, before=POD)
        assert "needs CAP_NET_RAW" in sentence(b, before=("setpriv", "--bounding-set",
                                                          "-net_raw"))
        assert "needs CAP_BPF" in sentence(b, before=("setpriv", "--bounding-set",
                                                      "-bpf,-sys_admin"))


def test_somebody_elses_program(program):
    with veth_pair() as (a, _):
        fds = other_program(a)
        opened = Peer(program, a).opened
        for fd in fds:
            os.close(fd)
        assert re.fullmatch(r"error -17: v1 has another XDP program already, 'somebody' \(id \d+\):"
                            " detach it, or use port udp", opened)
        with Peer(program, a):
            pass
