"""Two hosts that are far from each other: namespaces with a slow, long line between them.

    10.7.0.1  far <--veth--> left [delay_line] right <--veth--> far  10.7.0.2

A host's device is shaped by tbf, with a queue as long as a round trip brings bytes, and bench/c/
delay_line.c holds each frame for half a round trip.
"""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.arms import PATIENCE_S, build, read_line
from bench.subject import BenchError
from lab.offloads import PACKET_BY_PACKET, set_offloads
from lab.shaping import tbf
from lab.veth import Net

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab.namespace import Namespace

DEVICE = "far"
LEAST_QUEUE_BYTES = 256 << 10


@dataclass(frozen=True)
class FarHost:
    """One of the two; both call their device `DEVICE`."""

    space: Namespace
    address: str


@contextmanager
def far_hosts(rate_bps: float, round_trip_s: float) -> Iterator[tuple[FarHost, FarHost]]:
    """Make both, with kernel TCP by CUBIC, and the line."""
    with Net() as net:
        line = net.namespace()
        hosts = FarHost(net.namespace(), "10.7.0.1"), FarHost(net.namespace(), "10.7.0.2")
        for host, end in zip(hosts, ("left", "right"), strict=True):
            space = host.space
            space.run("ip", "link", "add", DEVICE, "type", "veth", "peer", "name", end, "netns",
                      line.path)
            space.run("ip", "address", "add", f"{host.address}/24", "dev", DEVICE)
            line.run("ip", "link", "set", end, "up")
            space.run("ip", "link", "set", DEVICE, "up")
            space.run("ip", "route", "replace", "10.7.0.0/24", "dev", DEVICE, "src", host.address,
                      "congctl", "cubic")
            with space.entered():
                set_offloads(DEVICE, PACKET_BY_PACKET)
            queue_bytes = max(LEAST_QUEUE_BYTES, int(rate_bps * round_trip_s / 8))
            space.run("tc", "qdisc", "replace", "dev", DEVICE, "root",
                      *tbf(rate_bps, 64 << 10, queue_bytes).split())
        process = line.start("nice", "-n", "-20", build("delay_line"), "left", "right",
                             "--delay-us", str(round(round_trip_s / 2 * 1e6)),
                             stdout=subprocess.PIPE, text=True)
        if read_line(process, PATIENCE_S) != "ready\n":
            raise BenchError("the program delay_line did not start")
        yield hosts
