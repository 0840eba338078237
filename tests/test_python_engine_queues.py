"""Which source ports reach the queue of a card that an engine owns: learnt, told, and used."""

from __future__ import annotations

import os

import pytest
from netns import usable, veth_pair

import harp
from harp.tools.statistics import snapshots

PATIENCE_S = 30
PATHS = 16
QUEUES = 2

pytestmark = pytest.mark.skipif(bool(usable()), reason=usable())


def strays(name: str) -> int:
    (found,) = [one for one in snapshots([os.getpid()]) if one.name == name]
    return sum(port["strays"] for port in found.ports)


def stream(near: harp.Session, far: harp.Session, messages: int) -> None:
    posted = [far.post(bytearray(500_000)) for _ in range(messages)]
    for _ in range(messages):
        near.send(bytes(500_000))
    for one in posted:
        one.wait(PATIENCE_S)


def test_paths_that_reach_another_queue_are_told_and_carry_no_more_data():
    name = f"far-{os.getpid()}"
    with veth_pair(queues=QUEUES) as (a, b), a.space.entered():
        with b.space.entered():
            there = harp.Engine("xdp", interface=b.device, address=b.ipv4, queue=0, name=name)
        with there, harp.Engine("udp", address=a.ipv4, locals=PATHS) as here:
            listener = there.listen(paths=PATHS)
            near = here.connect(listener.handle, timeout=PATIENCE_S, paths=PATHS)
            far = listener.accept(PATIENCE_S)
            stream(near, far, 8)  # the kernel spreads the ports over both queues
            off = [path.state["off_queue"] for path in near.paths]
            assert 0 < sum(off) < PATHS, off
            assert not any(p.state["usable"] for p in near.paths if p.state["off_queue"])
            assert strays(name) > 0
            before = near.paths
            stream(near, far, 8)
            sent = [p.state["sent"] - b.state["sent"] for p, b in zip(near.paths, before,
                                                                      strict=True)]
            assert sum(n for n, lost in zip(sent, off, strict=True) if lost) <= 2 * sum(off)
            assert sum(sent) > 8 * 500_000 // 1472
