"""UDP ports that lead to the queue of a card that an engine owns: found by trying."""

from __future__ import annotations

import os
import time

import pytest

import harp
from harp.cli.stats_files import snapshots
from lab.namespace import why_unusable
from lab.veth import Net, veth_pair
from tests.support.levels import long_except

PATIENCE_S = 30

pytestmark = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())


def strays(name: str) -> int:
    (found,) = [one for one in snapshots([os.getpid()]) if one.name == name]
    return sum(port["strays"] for port in found.ports)


def stream(near: harp.Connection, far: harp.Connection, messages: int) -> None:
    posted = [far.post(bytearray(200_000)) for _ in range(messages)]
    for _ in range(messages):
        near.send(bytes(200_000))
    for one in posted:
        one.wait(PATIENCE_S)


def await_no_strays(near: harp.Connection, far: harp.Connection, names: list[str]) -> None:
    """Stream both ways until no datagram of a whole round reaches a wrong queue.

    The probe of a path that has just moved may be under way: nothing says yet that it is right.
    """
    end = time.monotonic() + PATIENCE_S
    while True:
        before = [strays(name) for name in names]
        stream(near, far, 4)
        stream(far, near, 4)
        time.sleep(0.01)  # statistics are written once a millisecond
        waiting = any(path.state["off_queue"] for one in (near, far) for path in one.paths)
        if not waiting and before == [strays(name) for name in names]:
            return
        assert time.monotonic() < end, (before, [strays(name) for name in names])


def sources(connection: harp.Connection) -> set[int]:
    return {int(path.local.rpartition(":")[2]) for path in connection.paths}


def test_paths_move_until_they_reach_the_queue():
    """From the kernel's own sockets, too; and each path has a UDP port of its own."""
    name = f"far-{os.getpid()}"
    with veth_pair(queues=2) as (a, b), a.space.entered():
        with b.space.entered():
            there = harp.Engine("xdp", interface=b.device, address=b.ipv4, queue=0, name=name)
        with there, harp.Engine("udp", address=a.ipv4, locals=16) as here:
            listener = there.listen(paths=16)
            near = here.connect(listener.handle, timeout=PATIENCE_S, paths=16)
            far = listener.accept(PATIENCE_S)
            await_no_strays(near, far, [name])
            assert not any(path.state["off_queue"] for path in near.paths)
            assert len(sources(near)) == 16
            assert strays(name)  # of 16 paths some began at the wrong queue, so they have moved


@pytest.mark.parametrize("paths", long_except([1, 4], 4))
def test_cards_that_hash_each_by_its_own_key(paths):
    """The connecting end's port decides of both directions: of 16 pairs of queues, one is right."""
    names = [f"near-{os.getpid()}", f"far-{os.getpid()}"]
    with Net() as net:
        a, router, b = net.namespace(), net.namespace(), net.namespace()
        left, from_left = net.connect(a, router, queues=4)
        from_right, right = net.connect(router, b, queues=4)
        router.sysctl("ipv4.ip_forward", 1)
        a.run("ip", "route", "add", "default", "via", from_left.ipv4)
        b.run("ip", "route", "add", "default", "via", from_right.ipv4)
        with from_left.hashing(4, 0x1E35A7BD), from_right.hashing(4, 0x2C1B3C6D):
            with a.entered():
                here = harp.Engine("xdp", interface=left.device, queue=1, name=names[0])
            with b.entered():
                there = harp.Engine("xdp", interface=right.device, queue=2, name=names[1])
            with here, there:
                listener = there.listen(paths=paths)
                near = here.connect(listener.handle, timeout=PATIENCE_S, paths=paths)
                far = listener.accept(PATIENCE_S)
                await_no_strays(near, far, names)
