"""Two hosts with two ports each (`lab.dual_tor`): the network of scenes on the real stack.

Each port has an address of its own, which HARP's ports take, and each host one on loopback, for
TCP: the kernel hashes TCP's flows over both ports. When a link's carrier is lost, both hosts'
routes drop the port at once, as a bond's or a routing daemon's would after a while.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from bench.tccl.scenes import PORT
from lab.dual_tor import MTU, PORTS, DualTor, Queue
from lab.impairments import ETHERNET_BYTES, choose_class, drop_long, drop_share, flip_bits
from lab.shaping import burst_bytes

if TYPE_CHECKING:
    from lab.namespace import Namespace

RATE_BPS = 40_000_000
"""Of each port: so little that two cores carry it with time to spare."""
BURST_BYTES = burst_bytes(RATE_BPS, MTU)
QUEUE = Queue(RATE_BPS, RATE_BPS // 800, BURST_BYTES)
"""Of each port: 10 ms, a deep buffer."""
HOST_ADDRESSES = ("10.9.0.1", "10.9.0.2")


class Batch:
    """A process of ``ip`` or ``tc`` that stays and runs each line at once."""

    def __init__(self, space: Namespace, tool: str) -> None:
        self._tool = space.start(tool, "-batch", "-", stdin=subprocess.PIPE, text=True)

    def do(self, line: str) -> None:
        """Run a line."""
        assert self._tool.stdin
        self._tool.stdin.write(line + "\n")
        self._tool.stdin.flush()


class Lab(DualTor):
    """The namespaces, and the verbs of `bench.tccl.scenes.Network`."""

    def __init__(self, *, hashes_ports: bool = True) -> None:
        super().__init__("ab", QUEUE)
        self.hashes_ports = hashes_ports
        """Whether the kernel hashes ports as well as addresses (fib_multipath_hash_policy)."""
        self.share = 1.0
        """Of both ports' goodput that the receiver takes."""
        for number, host in enumerate(self.hosts):
            host.run("ip", "address", "add", f"{HOST_ADDRESSES[number]}/32", "dev", "lo")
            host.sysctl("ipv4.fib_multipath_hash_policy", int(hashes_ports))
            host.sysctl("ipv4.conf.all.rp_filter", 0)
        self._ip = [Batch(host, "ip") for host in self.hosts]
        self._tor_ip, self._tor_tc = (Batch(self.tors[PORT], tool) for tool in ("ip", "tc"))
        self._route(PORTS, wait=True)

    def _route(self, ports: tuple[int, ...], *, wait: bool = False) -> None:
        for number, batch in enumerate(self._ip):
            hops = " ".join(f"nexthop via {self.cables[1 - number][port].host.ipv4} dev "
                            f"{self.cables[number][port].host.device}" for port in ports)
            line = (f"route replace {HOST_ADDRESSES[1 - number]}/32 src {HOST_ADDRESSES[number]} "
                    f"{hops}")
            if wait:
                self.hosts[number].run("ip", *line.split())
            else:
                batch.do(line)

    def port_of(self, sport: int, dport: int, *, back: bool = False) -> str:
        """The device to which the kernel hashes a TCP flow, or its ACKs."""
        here, there = HOST_ADDRESSES[::-1] if back else HOST_ADDRESSES
        ports = (dport, sport) if back else (sport, dport)
        words = self.hosts[int(back)].run(
            "ip", "route", "get", there, "from", here, "ipproto", "tcp", "sport", str(ports[0]),
            "dport", str(ports[1])).split()
        return words[words.index("dev") + 1]

    # ---- what happens

    def set_cable(self, *, up: bool) -> None:
        """See `bench.tccl.scenes.Network`."""
        self._tor_ip.do(f"link set {self.cables[0][PORT].tor.device} {'up' if up else 'down'}")
        self._route(PORTS if up else PORTS[:PORT])

    def set_tor(self, *, up: bool) -> None:
        """See `bench.tccl.scenes.Network`."""
        for cables in self.cables:
            self._tor_ip.do(f"link set {cables[PORT].tor.device} {'up' if up else 'down'}")
        self._route(PORTS if up else PORTS[:PORT])

    def remove_nic(self) -> None:
        """See `bench.tccl.scenes.Network`."""
        self._ip[0].do(f"link delete {self.cables[0][PORT].host.device}")
        self._route(PORTS[:PORT])

    def set_rate(self, share: float) -> None:
        """See `bench.tccl.scenes.Network`."""
        self._tor_tc.do(f"qdisc change dev {self.cables[1][PORT].tor.device} root "
                        f"{QUEUE.tbf(share)}")

    def lose(self, share: float, *, answers: bool = False) -> None:
        """See `bench.tccl.scenes.Network`."""
        self.impairments.attach(self.cables[int(answers)][PORT].tor, drop_share(share))

    def corrupt(self, share: float) -> None:
        """See `bench.tccl.scenes.Network`."""
        self.impairments.attach(self.cables[0][PORT].tor, flip_bits(share))

    def shrink_mtu(self, nbytes: int) -> None:
        """See `bench.tccl.scenes.Network`."""
        self.impairments.attach(self.cables[0][PORT].tor, drop_long(nbytes + ETHERNET_BYTES))

    def reorder(self, share: float) -> None:
        """See `bench.tccl.scenes.Network`: some packets wait in a class of little rate."""
        device = self.cables[1][PORT].tor.device
        kbit = round(RATE_BPS / 1000)
        for line in (f"qdisc replace dev {device} root handle 1: htb default 1",
                     f"class add dev {device} parent 1: classid 1:9 htb rate {kbit}kbit burst "
                     f"{BURST_BYTES} cburst {BURST_BYTES} quantum 1514",
                     *(f"class add dev {device} parent 1:9 classid 1:{number} htb rate "
                       f"{round(kbit * part)}kbit ceil {round(kbit * most)}kbit burst "
                       f"{BURST_BYTES} cburst {BURST_BYTES} quantum 1514"
                       for number, part, most in ((1, 1 - 1.5 * share, 1), (2, 1.5 * share,
                                                                          1.5 * share)))):
            self._tor_tc.do(line)
        self.impairments.attach(self.cables[0][PORT].tor, choose_class(share, 0x10002))

    def slow_receiver(self, share: float) -> None:
        """See `bench.tccl.scenes.Network`."""
        self.share = share
