"""Two hosts with two ports each as namespaces: the network of bench/tccl/tccl_rows.py on the real stack.

       sender ── a0 ──┐ ToR 0 ┌── b0 ── receiver         each ToR a namespace with a bridge, each
              └─ a1 ──┤ ToR 1 ├── b1 ──┘                 cable a veth pair, shaped at both ends

Each port has an address of its own, which HARP's ports take, and each host one on loopback, for
TCP: the kernel hashes TCP's flows over both ports, and after what a link tells (`told`) both hosts'
routes leave the port out at once, as a bond's or a routing daemon's would after a while. Neighbours
are asked for as often as `harp setup` has it.
"""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from bench.tccl.scenes import PORT

from harp.cli.setup.targets import NEIGHBOUR_MS
from lab.impairments import Impairments, choose_class, drop_long, drop_share, flip_bits
from lab.offloads import SEGMENTATION
from lab.veth import End, Net

if TYPE_CHECKING:
    from lab.namespace import Namespace

RATE_BPS = 40_000_000
"""Of each port: so little that two cores carry it with time to spare."""
MTU, ETHERNET = 1500, 14
QUEUE_BYTES = RATE_BPS // 800
"""Of each port: 10 ms, a deep buffer."""
BURST_BYTES = MTU + ETHERNET + round(RATE_BPS * 2e-4 / 8)
"""What a port may send at once: a packet, and what its timer may be late."""
PORTS = (0, 1)
HOST_ADDRESSES = ("10.9.0.1", "10.9.0.2")
_OFFLOADS = {**dict.fromkeys(SEGMENTATION, False), "tx-checksum-ip-generic": False}


class Batch:
    """``ip`` or ``tc``, which stays and does each line at once."""

    def __init__(self, space: Namespace, tool: str) -> None:
        self._tool = space.start(tool, "-batch", "-", stdin=subprocess.PIPE, text=True)

    def do(self, line: str) -> None:
        """Do a line."""
        assert self._tool.stdin
        self._tool.stdin.write(line + "\n")
        self._tool.stdin.flush()


class Cable(NamedTuple):
    """Both ends of a veth pair."""

    host: End
    tor: End


class Lab:
    """The namespaces; what may happen to them is `bench.tccl.scenes.Network`."""

    def __init__(self, *, hashes_ports: bool = True) -> None:
        self._stack = ExitStack()
        self.hashes_ports = hashes_ports
        """Whether the kernel hashes ports as well as addresses (fib_multipath_hash_policy)."""
        self.share = 1.0
        """Of both ports' goodput that the receiver takes."""
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def _build(self) -> None:
        net = self._stack.enter_context(Net())
        self._programs = Impairments()
        self._stack.callback(self._programs.close)
        self.hosts = [net.namespace() for _ in HOST_ADDRESSES]
        tors = [net.namespace() for _ in PORTS]
        for tor in tors:
            tor.run("ip", "link", "add", "bridge", "type", "bridge")
            tor.run("ip", "link", "set", "bridge", "up")
        self.cables = [[_plug(host, tor, number, port) for port, tor in enumerate(tors)]
                       for number, host in enumerate(self.hosts)]
        for number, host in enumerate(self.hosts):
            host.run("ip", "address", "add", f"{HOST_ADDRESSES[number]}/32", "dev", "lo")
            for key, value in (("ipv4.fib_multipath_hash_policy", int(self.hashes_ports)),
                               ("ipv4.conf.all.rp_filter", 0),
                               *((f"ipv4.neigh.{cable.host.device}.retrans_time_ms", NEIGHBOUR_MS)
                                 for cable in self.cables[number])):
                host.sysctl(key, value)
        self._ip = [Batch(host, "ip") for host in self.hosts]
        self._tor_ip, self._tor_tc = (Batch(tors[PORT], tool) for tool in ("ip", "tc"))
        self._route(PORTS, wait=True)

    def close(self) -> None:
        """Let go of all of it."""
        self._stack.close()

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
        """Which device the kernel hashes a TCP flow to, or its answers."""
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
                        f"{_tbf(RATE_BPS * share)}")

    def lose(self, share: float, *, answers: bool = False) -> None:
        """See `bench.tccl.scenes.Network`."""
        self._programs.attach(self.cables[int(answers)][PORT].tor, drop_share(share))

    def corrupt(self, share: float) -> None:
        """See `bench.tccl.scenes.Network`."""
        self._programs.attach(self.cables[0][PORT].tor, flip_bits(share))

    def shrink_mtu(self, nbytes: int) -> None:
        """See `bench.tccl.scenes.Network`."""
        self._programs.attach(self.cables[0][PORT].tor, drop_long(nbytes + ETHERNET))

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
        self._programs.attach(self.cables[0][PORT].tor, choose_class(share, 0x10002))

    def slow_receiver(self, share: float) -> None:
        """See `bench.tccl.scenes.Network`."""
        self.share = share


def _plug(host: Namespace, tor: Namespace, number: int, port: int) -> Cable:
    """Join a host's port to a ToR."""
    name, peer = f"{'ab'[number]}{port}", f"t{number}"
    mac = f"02:00:00:00:{port + 1:02x}:{number + 1:02x}"
    ends = Cable(End(host, name, mac, f"10.0.{port + 1}.{number + 1}", ""),
                 End(tor, peer, "", "", ""))
    # Linux tells of a carrier up to a second late where both ends of a pair have one number, since
    # it takes them for no pair.
    host.run("ip", "link", "add", "name", name, "index", str(10 + port), "address", mac, "mtu",
             str(MTU), "type", "veth", "peer", "name", peer, "index", str(20 + number), "mtu",
             str(MTU), "netns", tor.path)
    tor.run("ip", "link", "set", peer, "master", "bridge", "up")
    host.run("ip", "address", "add", f"{ends.host.ipv4}/24", "dev", name)
    host.run("ip", "link", "set", name, "up")
    for end in ends:
        end.offloads(_OFFLOADS)
        end.space.run("tc", "qdisc", "replace", "dev", end.device, "root",
                      *_tbf(RATE_BPS).split())
    return ends


def _tbf(rate_bps: float) -> str:
    return f"tbf rate {round(rate_bps)}bit burst {BURST_BYTES} limit {QUEUE_BYTES}"
