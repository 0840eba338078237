"""A fabric as namespaces: veth pairs for cables, tbf for rates, kernel routes for switches.

Each host and each switch is a namespace. Cable c is a veth pair whose ends are named after the
directed links that leave there, ``l2c`` and ``l2c+1``; tbf lets each of them send at the scale of
its link's rate. A host has its NICs' addresses on loopback and a route over the ports of each, and
switches have routes of equal cost towards each address: the kernel hashes the five-tuple over them
(fib_multipath_hash_policy), each namespace with a seed of its own. So a bond is a route over the
ports of a NIC, which hashes addresses only (lacp-2+3) or ports as well (lacp-3+4).
"""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from sim.network.lab.space import Namespace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from harp.routing.fabric import Fabric

    Floats = NDArray[np.float64]

BURST_BYTES = 16 << 10
"""What tbf lets through at once: some packets, and less than a segment of 64 KiB, which it cuts."""
QUEUE_S = 2e-3
"""Simulated time that a queue holds at its link's rate: 6 MB at 25 Gb/s, a deep buffer."""
_LINKS_FIRST = int(IPv4Address("100.64.0.0"))  # shared address space, RFC 6598


class Wiring:
    """The namespaces of one fabric."""

    def __init__(self, fabric: Fabric, scale: float, mtu: int, policies: Sequence[str],
                 seed: int) -> None:
        """Make them; ``policies`` has the bond of each endpoint."""
        self._fabric, self._scale, self._mtu = fabric, scale, mtu
        self._policies = policies
        self.hosts = [Namespace(f"host {number}")
                      for number in range(int(fabric.endpoint_host.max()) + 1)]
        self._switches = [Namespace(name) for name in fabric.switches]
        try:
            self._prepare(seed)
            self._cable()
            self._give_addresses()
            self.route(fabric)
        except BaseException:
            self.close()
            raise

    def address(self, endpoint: int) -> str:
        """Address of a NIC."""
        return str(IPv4Address(int(self._fabric.endpoint_ip[endpoint])))

    def close(self) -> None:
        """Let go of all namespaces."""
        for space in (*self.hosts, *self._switches):
            space.close()

    def _space(self, node: int) -> Namespace:
        switches = len(self._switches)
        if node < switches:
            return self._switches[node]
        return self.hosts[int(self._fabric.endpoint_host[node - switches])]

    def _prepare(self, seed: int) -> None:
        for number, space in enumerate((*self.hosts, *self._switches)):
            by_port = number >= len(self.hosts) or "lacp-2+3" not in self._policies
            space.set_sysctls({
                "ipv4.ip_forward": 1, "ipv4.conf.all.rp_filter": 0,
                "ipv4.fib_multipath_hash_policy": int(by_port),
                "ipv4.fib_multipath_hash_seed": (seed * 2654435761 + number * 40503) % 2**32 or 1})

    def _cable(self) -> None:
        fabric = self._fabric
        for near in range(0, len(fabric.link_src), 2):
            here, there = (self._space(int(fabric.link_src[link])) for link in (near, near + 1))
            here.batch("ip", [
                f"link add name l{near} mtu {self._mtu} netns {here.path} type veth "
                f"peer name l{near + 1} mtu {self._mtu} netns {there.path}"])
        for space, links in self._links_by_space():
            space.batch("ip", ["link set lo up", *(
                line for link in links for line in (
                    f"address add {_link_address(link)}/31 dev l{link}", f"link set l{link} up"))])
            space.batch("tc", [self._shape(link, 1.0) for link in links])

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
        command = f"qdisc replace dev l{link} root tbf"
        if share <= 0:
            return f"{command} rate 8kbit burst 10 limit 10"  # less than any packet
        rate = float(self._fabric.link_bps[link]) * share * self._scale
        queue = max(int(rate * QUEUE_S / self._scale / 8), 8 * self._mtu + BURST_BYTES)
        return f"{command} rate {rate:.0f}bit burst {max(BURST_BYTES, 2 * self._mtu)} limit {queue}"

    def _give_addresses(self) -> None:
        for endpoint, host in enumerate(self._fabric.endpoint_host.tolist()):
            address = self.address(endpoint)
            self.hosts[host].batch("ip", [f"address add {address}/32 dev lo",
                                          f"rule add from {address} table {100 + endpoint}"])

    def route(self, fabric: Fabric) -> None:
        """Route as this state of the fabric says, the same links up or down."""
        live = fabric.live_ports
        for endpoint, ports in enumerate(fabric.endpoint_ports.tolist()):
            used = [port for port, up in zip(ports, live[endpoint].tolist(), strict=True) if up]
            if used and self._policies[endpoint] == "none":
                used = used[:1]
            self.hosts[int(fabric.endpoint_host[endpoint])].batch("ip", [
                f"route replace default table {100 + endpoint} {_next_hops(used)}"] if used else [])
        for switch, space in enumerate(self._switches):
            space.batch("ip", list(self._routes_of_switch(fabric, switch)))

    def _routes_of_switch(self, fabric: Fabric, switch: int) -> Iterator[str]:
        for endpoint in range(len(fabric.endpoints)):
            links = fabric.next_hops.at(switch, endpoint).tolist()
            if self._policies[endpoint] == "none":
                first = int(fabric.endpoint_ports[endpoint][0]) ^ 1
                links = [first] if first in links else links
            if links:
                yield f"route replace {self.address(endpoint)}/32 {_next_hops(links)}"


def _link_address(link: int) -> str:
    return str(IPv4Address(_LINKS_FIRST + link))


def _next_hops(links: Sequence[int]) -> str:
    return " ".join(f"nexthop via {_link_address(link ^ 1)} dev l{link}" for link in links)
