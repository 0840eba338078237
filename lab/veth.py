"""Network namespaces joined by veth pairs, for tests and benchmarks.

    with veth_pair(mtu=9000) as (a, b):
        server = b.space.start("./server", b.ipv4)
        a.space.run("./client", b.ipv4)

Namespaces have no names and no files. They live by a descriptor of this process and by the
processes in them, which die with this one, so that nothing is left behind after Ctrl-C or kill -9
either, and any number of tests may use the same device names and addresses at the same time. Needs
root.

       a 10.0.N.1  fd00:N::1                b 10.0.N.2  fd00:N::2
       dev vN (in a's namespace) <--veth--> dev vN (in b's namespace)      N: 1, 2, ... in a Net
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.network.lab import space
from lab.bpf import call_bpf, load_classifier
from lab.bpf import instruction as _op

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def usable() -> str:
    """Return why no namespaces can be made here, or an empty string: for pytest.mark.skipif."""
    return "" if os.geteuid() == 0 else "network namespaces need root"


class Namespace(space.Namespace):
    """A namespace of the laboratory, with what tests need besides."""

    def __init__(self) -> None:
        super().__init__("a test's namespace")
        self._started: list[subprocess.Popen[Any]] = []
        self.run("ip", "link", "set", "lo", "up")

    def run(self, *words: str | Path, timeout_s: float = 60) -> str:
        """Run a command here to its end, demand exit code 0, return what it printed."""
        done = subprocess.run(self.command(*words), capture_output=True, text=True, check=False,
                              timeout=timeout_s)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, words))}: exit code {done.returncode}: "
                               f"{done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def start(self, *words: str | Path, **options: Any) -> subprocess.Popen[Any]:
        """Start a command here; it is killed when the namespace is closed."""
        process = super().start(*words, **options)
        self._started.append(process)
        return process

    def sysctl(self, key: str, value: object) -> None:
        """Set one of /proc/sys/net, e.g. ``ipv4.ip_forward``."""
        with self.entered():
            Path("/proc/sys/net", *key.split(".")).write_text(f"{value}\n")

    def close(self) -> None:
        """Kill what was started here, and let the namespace go."""
        for process in self._started:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        super().close()


@dataclass(frozen=True)
class End:
    """One end of a veth pair."""

    space: Namespace
    device: str
    mac: str
    ipv4: str
    ipv6: str

    def features(self, wanted: Mapping[str, bool]) -> None:
        """Turn offloads on or off by the kernel's names, e.g. ``tx-udp-segmentation``."""
        with self.space.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            _set_features(control, self.device, wanted)

    def congestion(self, name: str) -> None:
        """Have kernel TCP to the other end take a congestion control, whatever the host's is."""
        route = self.space.run("ip", "-4", "route", "show", "dev", self.device).split()
        self.space.run("ip", "route", "replace", *route, "dev", self.device, "congctl", name)

    def shape(self, rate_bps: int, queue_bytes: int = 4 << 20, burst_bytes: int = 64 << 10) -> None:
        """Let what leaves here take its turn in a queue that is emptied at ``rate_bps``."""
        self.space.run("tc", "qdisc", "replace", "dev", self.device, "root", "tbf",
                       "rate", f"{rate_bps}bit", "burst", str(burst_bytes),
                       "limit", str(queue_bytes))

    @contextmanager
    def policed(self, rate_bps: int, burst_bytes: int = 128 << 10) -> Iterator[None]:
        """Drop what arrives here above ``rate_bps``: a policer, which has no queue.

        What the sender hands over as one large segment is dropped as one. Where each packet should
        be judged for itself, turn the sender's segmentation offloads off.
        """
        with self.space.entered():
            links = _attach_policer(socket.if_nametoindex(self.device), rate_bps, burst_bytes)
        try:
            yield
        finally:
            for fd in links:
                os.close(fd)

    @contextmanager
    def losing(self, share: float) -> Iterator[None]:
        """Drop this share of what arrives here, at random: what was said of ``policed`` holds."""
        with self.space.entered():
            links = _attach_dropper(socket.if_nametoindex(self.device), share)
        try:
            yield
        finally:
            for fd in links:
                os.close(fd)

    @contextmanager
    def late(self, delay_us: int) -> Iterator[None]:
        """Have what arrives here wait so long, as behind a long cable: 1 to 100 us.

        The kernel's CPU spins meanwhile, since few kernels have netem. So this is for some packets
        whose round trip counts, not for streams.
        """
        with self.space.entered():
            links = _attach_delay(socket.if_nametoindex(self.device), delay_us)
        try:
            yield
        finally:
            for fd in links:
                os.close(fd)

    @contextmanager
    def without_icmp(self) -> Iterator[None]:
        """Drop the ICMP that arrives here over IPv4, as many firewalls do."""
        with self.space.entered():
            links = _attach_icmp_filter(socket.if_nametoindex(self.device))
        try:
            yield
        finally:
            for fd in links:
                os.close(fd)

    @contextmanager
    def hashing(self, queues: int, factor: int) -> Iterator[None]:
        """Have what arrives here and is routed on reach a queue by its UDP ports.

        As a network card with several receive queues does. ``factor`` is the hash's key.
        """
        with self.space.entered():
            links = _attach_hash(socket.if_nametoindex(self.device), queues, factor)
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
        for end in ends:
            for address in (f"{end.ipv4}/24", f"{end.ipv6}/64"):
                nodad = ["nodad"] if ":" in address else []
                end.space.run("ip", "address", "add", address, "dev", end.device, *nodad)
            end.space.run("ip", "link", "set", end.device, "up")
        return ends


def _link(end: End, mtu: int, queues: int) -> list[str]:
    return ["name", end.device, "netns", end.space.path, "address", end.mac, "mtu", str(mtu),
            "numtxqueues", str(queues), "numrxqueues", str(queues)]


@contextmanager
def veth_pair(*, mtu: int = 1500, queues: int = 1) -> Iterator[tuple[End, End]]:
    """Two namespaces joined by a veth pair."""
    with Net() as net:
        yield net.connect(net.namespace(), net.namespace(), mtu=mtu, queues=queues)


# Offloads, by ethtool's ioctl (linux/ethtool.h).
_SIOCETHTOOL, _GSTRINGS, _SFEATURES, _GSSET_INFO, _SS_FEATURES = 0x8946, 0x1B, 0x3B, 0x37, 4
SEGMENTATION = ("tx-tcp-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation",
                "tx-tcp6-segmentation", "tx-udp-segmentation", "tx-generic-segmentation")
"""What lets a sender hand over many packets as one."""


def _ethtool(control: socket.socket, device: str, data: bytearray) -> None:
    cell = array.array("B", data)
    request = struct.pack("16sP8x", device.encode(), cell.buffer_info()[0])
    fcntl.ioctl(control, _SIOCETHTOOL, request)
    data[:] = cell.tobytes()


def _set_features(control: socket.socket, device: str, wanted: Mapping[str, bool]) -> None:
    count = bytearray(struct.pack("IIQI", _GSSET_INFO, 0, 1 << _SS_FEATURES, 0))
    _ethtool(control, device, count)
    total = struct.unpack_from("I", count, 16)[0]
    names = bytearray(struct.pack("III", _GSTRINGS, _SS_FEATURES, total) + bytes(32 * total))
    _ethtool(control, device, names)
    order = [names[12 + 32 * i:44 + 32 * i].split(b"\0")[0].decode() for i in range(total)]
    unknown = sorted(set(wanted) - set(order))
    if unknown:
        raise ValueError(f"{device} has no feature {unknown[0]!r}; it has {', '.join(order)}")
    blocks = [[0, 0] for _ in range((total + 31) // 32)]
    for name, on in wanted.items():
        block, bit = divmod(order.index(name), 32)
        blocks[block][0] |= 1 << bit
        blocks[block][1] |= int(on) << bit
    _ethtool(control, device, bytearray(
        struct.pack("II", _SFEATURES, len(blocks))
        + b"".join(struct.pack("II", *block) for block in blocks)))


# The policer: GCRA, the virtual-scheduling form of the leaky bucket (ITU-T I.371), in a few BPF
# instructions at the ingress of a device. tc's own policer is missing from many kernels.
_MAP_CREATE, _PROG_GET_FD_BY_ID, _LINK_CREATE = 0, 13, 28
_ARRAY, _XDP, _TCX_INGRESS = 2, 37, 46

_GO_ON = _op(0xB7, 0, imm=-1) + _op(0x95)
_DROP = _op(0xB7, 0, imm=2) + _op(0x95)


def _attach(ifindex: int, program: bytes) -> list[int]:
    """Load a program and let it judge what arrives; it does so until what is returned is closed."""
    loaded = load_classifier(program)
    link = struct.pack("IIII16x", loaded, ifindex, _TCX_INGRESS, 0)
    return [call_bpf(_LINK_CREATE, link), loaded]


def attach_again(program_id: int, end: End) -> list[int]:
    """Attach an XDP program that is somewhere already to ``end``, too, as ``_attach`` does."""
    program = call_bpf(_PROG_GET_FD_BY_ID, struct.pack("III", program_id, 0, 0))
    with end.space.entered():
        index = socket.if_nametoindex(end.device)
        return [call_bpf(_LINK_CREATE, struct.pack("IIII16x", program, index, _XDP, 0)), program]


def _attach_dropper(ifindex: int, share: float) -> list[int]:
    if not 0 <= share < 1:
        raise ValueError(f"a share of {share} of what arrives; it may be 0 and is below 1")
    return _attach(ifindex, b"".join((
        _op(0x85, imm=7), _op(0x77, 0, imm=1),            # r0 = 31 random bits
        _op(0xA5, 0, off=2, imm=round(share * 2**31)),    # if r0 < share: drop
        _GO_ON, _DROP)))


def _attach_delay(ifindex: int, delay_us: int) -> list[int]:
    if not 1 <= delay_us <= 100:
        raise ValueError(f"a delay of {delay_us} us; 1 to 100 are possible")
    return _attach(ifindex, b"".join((
        _op(0x85, imm=5), _op(0xBF, 6, 0),                # r6 = now, ns
        _op(0x07, 6, imm=delay_us * 1000),                # r6 += delay
        _op(0xB7, 7, imm=1 << 14),                        # r7 = looks at the clock that are left
        _op(0x07, 7, imm=-1), _op(0x15, 7, off=2),        # r7 -= 1; if r7 == 0: go on
        _op(0x85, imm=5), _op(0xAD, 0, 6, off=-4),        # r0 = now; if r0 < r6: look again
        _GO_ON)))


def _attach_icmp_filter(ifindex: int) -> list[int]:
    return _attach(ifindex, b"".join((
        _op(0xBF, 6, 1),                # r6 = the packet, for loads from it
        _op(0x30, imm=23),              # r0 = the protocol, in IPv4 (or leave)
        _op(0x15, 0, off=2, imm=1),     # if it is ICMP: drop
        _GO_ON, _DROP)))


def _attach_hash(ifindex: int, queues: int, factor: int) -> list[int]:
    if queues < 2 or queues & (queues - 1):
        raise ValueError(f"{queues} queues; the hash takes a power of two")
    return _attach(ifindex, b"".join((
        _op(0xBF, 6, 1),                               # r6 = the packet, for loads from it
        _op(0x20, imm=34),                             # r0 = both ports, behind IPv4 (or leave)
        _op(0x24, 0, imm=factor), _op(0x74, 0, imm=20),  # r0 = (u32) (r0 * factor) >> 20
        _op(0x54, 0, imm=queues - 1), _op(0x07, 0, imm=1),
        _op(0x63, 6, 0, off=12),                       # queue_mapping = 1 + queue: "received on"
        _GO_ON)))


def _attach_policer(ifindex: int, rate_bps: int, burst_bytes: int) -> list[int]:
    cost = round(8e9 / rate_bps * (1 << 16))  # of a byte, in 2^-16 ns
    burst_ns = round(burst_bytes * 8e9 / rate_bps)
    if not (0 < cost < 1 << 31 and 0 < burst_ns < 1 << 31):
        raise ValueError(f"a policer of {rate_bps} bit/s with {burst_bytes} bytes; a byte may take "
                         "0.1 ns to 32 us, and the burst 2 s")
    bucket = call_bpf(_MAP_CREATE, struct.pack("IIIII", _ARRAY, 4, 8, 1, 0))
    program = b"".join((
        _op(0x61, 7, 1),                              # r7 = bytes of the packet
        _op(0x18, 8, 2, imm=bucket), _op(0),          # r8 = &theoretical arrival time
        _op(0x85, imm=5),                             # r0 = now, ns
        _op(0x79, 1, 8),                              # r1 = *r8
        _op(0x3D, 1, 0, off=1), _op(0xBF, 1, 0),      # if r1 < r0: r1 = r0
        _op(0xBF, 2, 1), _op(0x1F, 2, 0),             # r2 = r1 - r0: how far ahead of its time
        _op(0x25, 2, off=6, imm=burst_ns),            # if r2 > burst: drop
        _op(0x27, 7, imm=cost), _op(0x77, 7, imm=16),  # r7 = cost of the packet in ns
        _op(0x0F, 1, 7), _op(0x7B, 8, 1),             # *r8 = r1 + r7
        _GO_ON, _DROP))
    return [*_attach(ifindex, program), bucket]
