"""Hosts with two ports each under two ToR switches, as namespaces.

    a ── a0 ──┐ ToR 0 ┌── b0 ── b       each ToR a namespace with a bridge and a subnet of its own,
      └─ a1 ──┤ ToR 1 ├── b1 ──┘        each cable a veth pair, shaped at both ends
              c, d alike

Port p of host n has the address 10.0.(p+1).(n+1). Neighbour entries are asked for as often as
`harp setup` sets it: else a path stays dead for up to a second after its link is back.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from harp.cli.setup.targets import NEIGHBOUR_MS
from lab.impairments import Impairments
from lab.offloads import PACKET_BY_PACKET
from lab.shaping import tbf
from lab.veth import End, Net

if TYPE_CHECKING:
    from collections.abc import Sequence


PORTS = (0, 1)
MTU = 1500


class Cable(NamedTuple):
    """Both ends of a veth pair."""

    host: End
    tor: End


class Queue(NamedTuple):
    """The shaper of every port; its fields are the arguments of `End.shape`."""

    rate_bps: float
    queue_bytes: int
    burst_bytes: int

    def tbf(self, share: float = 1.0) -> str:
        """As words of tc, at a share of the rate."""
        return tbf(self.rate_bps * share, self.burst_bytes, self.queue_bytes)


class DualTor:
    """The namespaces of the hosts and the ToRs, and their cables by host and port."""

    def __init__(self, names: Sequence[str], queue: Queue) -> None:
        self._stack, self._queue = ExitStack(), queue
        self.impairments = Impairments()
        self._stack.callback(self.impairments.close)
        try:
            net = self._stack.enter_context(Net())
            self.hosts = [net.namespace() for _ in names]
            self.tors = [net.namespace() for _ in PORTS]
            for tor in self.tors:
                tor.run("ip", "link", "add", "bridge", "up", "type", "bridge")
            self.cables = [[self._plug(name, number, port) for port in PORTS]
                           for number, name in enumerate(names)]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove all of it."""
        self._stack.close()

    def _plug(self, name: str, number: int, port: int) -> Cable:
        """Join a host's port to a ToR."""
        host, tor, device, peer = self.hosts[number], self.tors[port], f"{name}{port}", f"t{number}"
        ends = Cable(End(host, device, f"02:00:00:00:{port + 1:02x}:{number + 1:02x}",
                         f"10.0.{port + 1}.{number + 1}", ""), End(tor, peer, "", "", ""))
        # Linux reports a carrier up to a second late where both ends of a pair have one number,
        # since it takes them for no pair.
        host.run("ip", "link", "add", "name", device, "index", str(10 + port), "address",
                 ends.host.mac, "mtu", str(MTU), "type", "veth", "peer", "name", peer, "index",
                 str(20 + number), "mtu", str(MTU), "netns", tor.path)
        tor.run("ip", "link", "set", peer, "master", "bridge", "up")
        host.run("ip", "address", "add", f"{ends.host.ipv4}/24", "dev", device)
        host.run("ip", "link", "set", device, "up")
        host.sysctl(f"ipv4.neigh.{device}.retrans_time_ms", NEIGHBOUR_MS)
        for end in ends:
            end.offloads(PACKET_BY_PACKET)
            end.shape(*self._queue)
        return ends

    def set_link(self, host: int, port: int, *, up: bool) -> None:
        """Pull a cable at its ToR, or plug it in."""
        self.tors[port].run("ip", "link", "set", self.cables[host][port].tor.device,
                            "up" if up else "down")

    def set_share(self, host: int, port: int, share: float) -> None:
        """Let the ToR send to a host at a share of the rate."""
        self.tors[port].run("tc", "qdisc", "change", "dev", self.cables[host][port].tor.device,
                            "root", *self._queue.tbf(share).split())

    def remove_port(self, host: int, port: int) -> None:
        """Remove a host's NIC for ever."""
        self.hosts[host].run("ip", "link", "delete", self.cables[host][port].host.device)
