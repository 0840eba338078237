"""The namespaces that tests and benchmarks run in."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from lab.namespace import why_unusable
from lab.offloads import SEGMENTATION
from lab.veth import Net, veth_pair
from tests.support import ROOT

pytestmark = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())


def sockets(a, b, *, family=socket.AF_INET):
    to = b.ipv4 if family == socket.AF_INET else b.ipv6
    with b.space.entered():
        there = socket.socket(family, socket.SOCK_DGRAM)
        there.bind((to, 0))
    there.settimeout(60)
    with a.space.entered():
        here = socket.socket(family, socket.SOCK_DGRAM)
        here.connect(there.getsockname()[:2])
    return here, there


def arrived(here, there):
    """Packets that came before a last one."""
    here.send(b"last")
    return list(iter(lambda: there.recv(1 << 16), b"last"))


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_both_ends_hear_each_other(family):
    with veth_pair(mtu=9000) as (a, b):
        here, there = sockets(a, b, family=family)
        with here, there:
            here.send(bytes(8000))
            assert there.recv(1 << 16) == bytes(8000)


def test_queues_and_mtu():
    with veth_pair(mtu=3400, queues=4) as (a, b):
        for end in (a, b):
            shown = end.space.run("ip", "-d", "link", "show", end.device)
            assert "mtu 3400" in shown
            assert "numtxqueues 4 numrxqueues 4" in shown


def test_three_namespaces_and_a_router():
    with Net() as net:
        a, router, b = net.namespace(), net.namespace(), net.namespace()
        left, _ = net.connect(a, router)
        _, right = net.connect(router, b)
        router.sysctl("ipv4.ip_forward", 1)
        a.run("ip", "route", "add", "default", "via", "10.0.1.2")
        b.run("ip", "route", "add", "default", "via", "10.0.2.1")
        here, there = sockets(left, right)
        with here, there:
            here.send(b"far")
            assert there.recv(10) == b"far"


def test_offloads_go_off_by_name():
    with veth_pair() as (a, _):
        a.offloads(dict.fromkeys(SEGMENTATION, False))
        with pytest.raises(ValueError, match=r"has no feature 'tx-magic'; it has .*tx-udp-segm"):
            a.offloads({"tx-magic": True})


def test_a_policer_drops_what_is_above_its_rate():
    with veth_pair() as (a, b):
        here, there = sockets(a, b)
        with here, there:
            with b.policed(10**6, burst_bytes=1500):
                for _ in range(50):
                    here.send(bytes(958))  # 1,000 bytes with all headers, 8 ms
            # A burst of 1.5 packets is one that is in time and one that is a packet ahead.
            assert 2 <= len(arrived(here, there)) < 50


def test_a_policer_is_gone_after_its_block():
    with veth_pair() as (a, b):
        with b.policed(10**6, burst_bytes=100):
            pass
        here, there = sockets(a, b)
        with here, there:
            for _ in range(50):
                here.send(bytes(958))
            assert len(arrived(here, there)) == 50


def test_a_shaper_delays():
    with veth_pair() as (a, b):
        a.shape(10**6, burst_bytes=2000)
        here, there = sockets(a, b)
        with here, there:
            start_s = time.monotonic()
            for _ in range(3):
                here.send(bytes(1200))
            for _ in range(3):
                there.recv(2000)
            assert time.monotonic() - start_s > 0.005  # a packet takes 10 ms, and one is free


def test_a_failing_command_says_what_it_said():
    with veth_pair() as (a, _), pytest.raises(RuntimeError, match=r"exit code 1: .*nowhere"):
        a.space.run("sh", "-c", "echo nowhere >&2; exit 1")


LEAVES = """
import os, sys
from lab.veth import veth_pair
with veth_pair() as (a, b):
    sleeper = a.space.start("sleep", "600")
    print(sleeper.pid, os.stat(a.space.fd).st_ino, flush=True)
    sys.stdin.read()
"""


def test_nothing_is_left_after_kill():
    with subprocess.Popen([sys.executable, "-c", LEAVES],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          cwd=ROOT) as process:
        pid, space = process.stdout.readline().split()
        process.kill()
    deadline_s = time.monotonic() + 30
    while (stays(pid) or space in spaces()) and time.monotonic() < deadline_s:
        pass
    assert not stays(pid)
    assert space not in spaces()


def stays(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def spaces():
    """Inode numbers of all network namespaces with a process in them."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        with suppress(OSError):  # a process ends while we look
            found.add(str(link.stat().st_ino))
    return found
