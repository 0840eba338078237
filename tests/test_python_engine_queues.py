"""Which source ports reach the queue of a card that an engine owns: learnt, told, and used."""

from __future__ import annotations

import os
import time

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


def off_queue(near: harp.Session) -> list[int]:
    return [path.state["off_queue"] for path in near.paths]


def stream(near: harp.Session, far: harp.Session, messages: int) -> None:
    posted = [far.post(bytearray(500_000)) for _ in range(messages)]
    for _ in range(messages):
        near.send(bytes(500_000))
    for one in posted:
        one.wait(PATIENCE_S)


def share_of_retired(near: harp.Session, far: harp.Session) -> float:
    """Stream some messages; of the packets, the share of paths that were off their queue."""
    before = near.paths
    stream(near, far, 8)
    sent = [path.state["sent"] - old.state["sent"]
            for path, old in zip(near.paths, before, strict=True)]
    assert sum(sent) > 8 * 500_000 // 1472
    return sum(n for n, old in zip(sent, before, strict=True)
               if old.state["off_queue"]) / sum(sent)


def test_paths_that_reach_another_queue_are_told_and_carry_no_more_data():
    name = f"far-{os.getpid()}"
    with veth_pair(queues=QUEUES) as (a, b), a.space.entered():
        with b.space.entered():
            there = harp.Engine("xdp", interface=b.device, address=b.ipv4, queue=0, name=name)
        with there, harp.Engine("udp", address=a.ipv4, locals=PATHS) as here:
            listener = there.listen(paths=PATHS)
            near = here.connect(listener.handle, timeout=PATIENCE_S, paths=PATHS)
            far = listener.accept(PATIENCE_S)
            # The kernel spreads the ports over both queues. Probes tell, before there is data.
            end = time.monotonic() + PATIENCE_S
            while not any(off_queue(near)):
                assert time.monotonic() < end
            assert near.info.counters["data_sent"] == 0
            stream(near, far, 8)
            off = off_queue(near)
            assert 0 < sum(off) < PATHS, off
            assert strays(name) > 0
            # Not at once on a busy machine: where all other paths look dead, these carry on.
            assert any(share_of_retired(near, far) < 0.05 for _ in range(20))
