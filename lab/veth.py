"""Namespaces joined by veth pairs.

with veth_pair(mtu=9000) as (a, b):
server = b.space.start("./server", b.ipv4)
a.space.run("./client", b.ipv4)

a 10.0.N.1  fd00:N::1                b 10.0.N.2  fd00:N::2
dev vN (in a's namespace) <--veth--> dev vN (in b's namespace)      N: 1, 2, ... in a Net
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lab.bpf import attach_to_ingress, make_array
from lab.impairments import (
    choose_queue,
    delay,
    drop_protocol,
    drop_share,
    drop_tcp_port,
    police,
    police_protocol,
)
from lab.namespace import Namespace
from lab.offloads import set_offloads
from lab.shaping import tbf

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager


@dataclass(frozen=True)
class End:
    """One end of a veth pair."""

    space: Namespace
    device: str
    mac: str
    ipv4: str
    ipv6: str

    def offloads(self, wanted: Mapping[str, bool]) -> None:
        """Turn offloads on or off by the kernel's names, e.g. ``tx-udp-segmentation``."""
        with self.space.entered():
            set_offloads(self.device, wanted)

    def congestion(self, name: str) -> None:
        """Set the congestion control of kernel TCP to the other end, independent of the host's."""
        route = self.space.run("ip", "-4", "route", "show", "dev", self.device).split()
        self.space.run("ip", "route", "replace", *route, "dev", self.device, "congctl", name)

    def shape(self, rate_bps: float, queue_bytes: int = 4 << 20,
              burst_bytes: int = 64 << 10) -> None:
        """Queue what leaves here, and empty the queue at ``rate_bps``."""
        self.space.run("tc", "qdisc", "replace", "dev", self.device, "root",
                       *tbf(rate_bps, burst_bytes, queue_bytes).split())

    def policed(self, rate_bps: int, burst_bytes: int = 128 << 10) -> AbstractContextManager[None]:
        """Drop what arrives here above ``rate_bps``."""
        bucket = make_array()
        return self._impaired(police(rate_bps, burst_bytes, bucket), bucket)

    def losing(self, share: float) -> AbstractContextManager[None]:
        """Drop this share of what arrives here, at random."""
        return self._impaired(drop_share(share))

    def losing_port(self, port: int) -> AbstractContextManager[None]:
        """Drop what arrives here over IPv4 from or to a TCP port."""
        return self._impaired(drop_tcp_port(port))

    def late(self, delay_us: int) -> AbstractContextManager[None]:
        """Delay what arrives here by 1 to 100 us."""
        return self._impaired(delay(delay_us))

    def without_icmp(self) -> AbstractContextManager[None]:
        """Drop the ICMP that arrives here over IPv4."""
        return self.without_protocol(socket.IPPROTO_ICMP)

    def without_protocol(self, protocol: int) -> AbstractContextManager[None]:
        """Drop what arrives here over IPv4 of this protocol."""
        return self._impaired(drop_protocol(protocol))

    def policed_protocol(self, protocol: int, rate_bps: int,
                         burst_bytes: int = 128 << 10) -> AbstractContextManager[None]:
        """Drop what arrives here over IPv4 of this protocol above ``rate_bps``."""
        bucket = make_array()
        return self._impaired(police_protocol(protocol, rate_bps, burst_bytes, bucket), bucket)

    def hashing(self, queues: int, factor: int) -> AbstractContextManager[None]:
        """Choose the queue of what arrives here and is routed on by its UDP ports."""
        return self._impaired(choose_queue(queues, factor))

    @contextmanager
    def _impaired(self, program: bytes, *maps: int) -> Iterator[None]:
        links = [*attach_to_ingress(self.space, self.device, program), *maps]
        try:
            yield
        finally:
            for fd in links:
                os.close(fd)


class Net:
    """Namespaces and the pairs between them; a context manager that removes them all."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._pairs = 0

    def __enter__(self) -> Net:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def namespace(self) -> Namespace:
        """Make a namespace with nothing but loopback."""
        made = Namespace()
        self._stack.callback(made.close)
        return made

    def connect(self, a: Namespace, b: Namespace, *, mtu: int = 1500,
                queues: int = 1) -> tuple[End, End]:
        """Join two namespaces by a veth pair that is up and has addresses."""
        self._pairs += 1
        n = self._pairs
        ends = (End(a, f"v{n}", f"02:00:00:00:{n:02x}:01", f"10.0.{n}.1", f"fd00:{n:x}::1"),
                End(b, f"v{n}", f"02:00:00:00:{n:02x}:02", f"10.0.{n}.2", f"fd00:{n:x}::2"))
        if a is b:
            raise ValueError("a veth pair joins two namespaces: both ends of one would be one name")
        a.run("ip", "link", "add", *_link(ends[0], mtu, queues), "type", "veth",
              "peer", *_link(ends[1], mtu, queues))
        # The first neighbour solicitation is lost where addresses come before the links are up, and
        # IPv6 solicits again a second later.
        for end in ends:
            end.space.run("ip", "link", "set", end.device, "up")
        for end in ends:
            end.space.run("ip", "address", "add", f"{end.ipv4}/24", "dev", end.device)
            end.space.run("ip", "address", "add", f"{end.ipv6}/64", "dev", end.device, "nodad")
        return ends


def _link(end: End, mtu: int, queues: int) -> list[str]:
    return ["name", end.device, "netns", end.space.path, "address", end.mac, "mtu", str(mtu),
            "numtxqueues", str(queues), "numrxqueues", str(queues)]


@contextmanager
def veth_pair(*, mtu: int = 1500, queues: int = 1) -> Iterator[tuple[End, End]]:
    """Two namespaces joined by a veth pair."""
    with Net() as net:
        yield net.connect(net.namespace(), net.namespace(), mtu=mtu, queues=queues)


