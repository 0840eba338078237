"""A fabric as namespaces: veth pairs for cables, tbf for rates, kernel routes for switches.

Each host and each switch is a namespace. Cable c is a veth pair; its ends are named after the
directed links that leave there, ``l2c`` and ``l2c+1``; tbf lets each of them send at the scale of
its link's rate. Switches have routes of equal cost towards the address of each NIC, in the order of
`Fabric.next_hops`: the kernel hashes the five-tuple over them, with the switch's ``hash_salt`` as
its seed, so that a fabric of ``linux`` hashes knows which it takes.

A host has its NICs' addresses on loopback. `pin` sets flow by flow which port of a bond a flow
leaves by, as the bond of the simulators chose it; other flows are hashed. Behind a host's tbf
acknowledgments go first (`lab.classifiers`); a switch's tbf is a plain queue.
"""

from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

import numpy as np

from lab import namespace
from lab.classifiers import attach_to_host, attach_to_switch
from lab.namespace import Namespace
from lab.shaping import burst_bytes, tbf

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from harp.routing.fabric import Fabric

    Floats = NDArray[np.float64]

QUEUE_S = 2e-3
"""Simulated time that a queue holds at its link's rate: 6 MB at 25 Gb/s, a deep buffer."""
_LINKS_FIRST = int(IPv4Address("100.64.0.0"))  # shared address space, RFC 6598
_SENT_BYTES = 8  # column of /proc/net/dev
_PINNED, _HASHED = 100, 200  # priorities of rules
_TABLE_OF_ENDPOINT, _TABLE_OF_LINK = 100, 10_000


class PinnedFlow(NamedTuple):
    """A flow that leaves its NIC by a port that was chosen for it."""

    protocol: str
    """``tcp`` or ``udp``."""
    src: str
    src_port: int
    dst: str
    dst_port: int


class Wiring:
    """The namespaces of one fabric."""

    def __init__(self, fabric: Fabric, scale: float, mtu: int, *, spray: bool = False) -> None:
        self._fabric, self._scale, self._mtu = fabric, scale, mtu
        self._pinned: dict[PinnedFlow, int] = {}
        self._counters: list[TextIO] = []
        self.hosts = [Namespace(f"host {number}")
                      for number in range(int(fabric.endpoint_host.max()) + 1)]
        self.switches = [Namespace(name) for name in fabric.switches]
        try:
            self._prepare()
            self._cable()
            for number, space in enumerate(self.switches):
                into = [link ^ 1 for link, near in enumerate(fabric.link_dst.tolist())
                        if near == number]
                attach_to_switch(space, [f"l{link}" for link in into], spray=spray)
            self._give_addresses()
            self.route(fabric)
        except BaseException:
            self.close()
            raise

    def address(self, endpoint: int) -> str:
        """Address of a NIC."""
        return str(IPv4Address(int(self._fabric.endpoint_ip[endpoint])))

    def addresses(self, host: int) -> list[str]:
        """Addresses of a host's NICs."""
        return [self.address(int(endpoint))
                for endpoint in (self._fabric.endpoint_host == host).nonzero()[0]]

    def close(self) -> None:
        """Let go of all namespaces."""
        for file in self._counters:
            file.close()
        self._counters = []
        for space in (*self.hosts, *self.switches):
            space.close()

    def _space(self, node: int) -> Namespace:
        switches = len(self.switches)
        if node < switches:
            return self.switches[node]
        return self.hosts[int(self._fabric.endpoint_host[node - switches])]

    def _prepare(self) -> None:
        for space in (*self.hosts, *self.switches):
            space.sysctl("ipv4.conf.all.rp_filter", 0)
            space.sysctl("ipv4.fib_multipath_hash_policy", 1)
        for space, salt in zip(self.switches, self._fabric.hash_salt.tolist(), strict=True):
            space.sysctl("ipv4.ip_forward", 1)
            space.sysctl("ipv4.fib_multipath_hash_seed", salt or 1)  # 0: the kernel chooses one

    def _cable(self) -> None:
        fabric = self._fabric
        for near in range(0, len(fabric.link_src), 2):
            here, there = (self._space(int(fabric.link_src[link])) for link in (near, near + 1))
            here.batch("ip", [
                f"link add name l{near} mtu {self._mtu} netns {here.path} type veth "
                f"peer name l{near + 1} mtu {self._mtu} netns {there.path}"])
        for space, links in self._links_by_space():
            space.batch("ip", [line for link in links for line in (
                f"address add {_link_address(link)}/31 dev l{link}",
                f"link set l{link} txqueuelen {self._queue_packets(link)} up")])
            space.batch("tc", [self._shape(link, 1.0) for link in links])
            if space in self.hosts:
                space.batch("tc", [f"qdisc replace dev l{link} parent 1:1 pfifo_fast"
                                   for link in links])
                attach_to_host(space, [f"l{link}" for link in links])

    def _links_by_space(self) -> list[tuple[Namespace, list[int]]]:
        spaces: dict[Namespace, list[int]] = {}
        for link, node in enumerate(self._fabric.link_src.tolist()):
            spaces.setdefault(self._space(node), []).append(link)
        return list(spaces.items())

    def shape(self, links: Sequence[int], share: Floats) -> None:
        """Let these links send at their shares of their rates, of the shares of all links."""
        for space, here in self._links_by_space():
            space.batch("tc", [self._shape(link, float(share[link]))
                               for link in sorted(set(here) & set(links))])

    def _shape(self, link: int, share: float) -> str:
        if share <= 0:
            queueing = tbf(8000, 10, 10)  # less than any packet
        else:
            rate_bps = float(self._fabric.link_bps[link]) * share * self._scale
            burst = burst_bytes(rate_bps, self._mtu)
            queueing = tbf(rate_bps, burst, max(int(rate_bps * QUEUE_S / self._scale / 8),
                                                8 * self._mtu + burst))
        return f"qdisc replace dev l{link} root handle 1: {queueing}"

    def _queue_packets(self, link: int) -> int:
        """Packets that pfifo_fast holds; tbf's own queue counts bytes."""
        return int(self._fabric.link_bps[link] * QUEUE_S / 8 / self._mtu)

    def _give_addresses(self) -> None:
        for endpoint, host in enumerate(self._fabric.endpoint_host.tolist()):
            address = self.address(endpoint)
            ports = [link for link in self._fabric.endpoint_ports[endpoint].tolist() if link >= 0]
            self.hosts[host].batch("ip", [
                f"address add {address}/32 dev lo",
                f"rule add priority {_HASHED} from {address} table {_TABLE_OF_ENDPOINT + endpoint}",
                *(f"route add default table {_TABLE_OF_LINK + link} {_next_hops([link])}"
                  for link in ports)])

    def sent_bytes(self) -> Floats:
        """Bytes that each link has carried, with Ethernet's headers, by the kernel's counters."""
        if not self._counters:
            for space, _ in self._links_by_space():
                with space.entered():
                    self._counters.append(Path("/proc/thread-self/net/dev").open())  # noqa: SIM115
        sent = np.zeros(len(self._fabric.link_src))
        for file in self._counters:
            file.seek(0)
            for line in file:
                name, _, figures = line.strip().partition(":")
                if name.startswith("l") and name[1:].isdigit():
                    sent[int(name[1:])] = float(figures.split()[_SENT_BYTES])
        return sent

    # ---- routes

    def route(self, fabric: Fabric) -> None:
        """Route as this state of the fabric says, the same links up or down."""
        live = fabric.live_ports
        for endpoint, ports in enumerate(fabric.endpoint_ports.tolist()):
            used = [port for port, up in zip(ports, live[endpoint].tolist(), strict=True) if up]
            table = _TABLE_OF_ENDPOINT + endpoint
            self.hosts[int(fabric.endpoint_host[endpoint])].batch("ip", [
                f"route replace default table {table} {_next_hops(used)}"] if used else [])
        for switch, space in enumerate(self.switches):
            space.batch("ip", list(self._routes_of_switch(fabric, switch)))

    def _routes_of_switch(self, fabric: Fabric, switch: int) -> Iterator[str]:
        for endpoint in range(len(fabric.endpoints)):
            links = fabric.next_hops.at(switch, endpoint).tolist()
            if links:
                yield f"route replace {self.address(endpoint)}/32 {_next_hops(links)}"

    def pin(self, flows: Iterable[tuple[PinnedFlow, int]]) -> None:
        """Let each flow leave its NIC by this link from now on."""
        lines: dict[Namespace, list[str]] = {}
        several = (self._fabric.endpoint_ports >= 0).sum(axis=1) > 1
        for flow, link in flows:
            node = int(self._fabric.link_src[link])
            before = self._pinned.get(flow)
            if before == link or not several[node - len(self.switches)]:
                continue
            self._pinned[flow] = link
            lines.setdefault(self._space(node), []).extend([
                f"rule add {_match(flow, link)}",
                *([] if before is None else [f"rule del {_match(flow, before)}"])])
        for space, batch in lines.items():
            space.batch("ip", batch)


def why_unusable() -> str:
    """Return why no fabric can be wired here, or an empty string."""
    if not Path("/proc/sys/net/ipv4/fib_multipath_hash_seed").exists():
        return namespace.why_unusable() or (
            "needs Linux 6.11 or later, with multipath routes (CONFIG_IP_ROUTE_MULTIPATH), for a "
            "seed of their hash")
    return namespace.why_unusable()


def _match(flow: PinnedFlow, link: int) -> str:
    return (f"priority {_PINNED} from {flow.src} to {flow.dst} ipproto {flow.protocol} "
            f"sport {flow.src_port} dport {flow.dst_port} table {_TABLE_OF_LINK + link}")


def _link_address(link: int) -> str:
    return str(IPv4Address(_LINKS_FIRST + link))


def _next_hops(links: Sequence[int]) -> str:
    return " ".join(f"nexthop via {_link_address(link ^ 1)} dev l{link}" for link in links)
