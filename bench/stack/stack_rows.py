"""Speed of the stack against references of the same run: kernel TCP, raw sockets, memory.

Throughput is payload; CRC and tag are on; two CPUs are pinned. docs/results/speed.md explains each
row and its bound. Needs root, for network namespaces.
"""

from __future__ import annotations

import re
import subprocess
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from bench.arms import (
    PATIENCE_S,
    TCP,
    Bench,
    Sample,
    alone,
    build,
    gbps,
    one_way,
    read_line,
)
from bench.comparison import ArmRow, compare
from bench.rows import by_id
from bench.stack.emulated import emulated_at
from bench.stack.tcp_places import dead_flow, two_links
from bench.subject import BenchError
from lab.offloads import SEGMENTATION
from lab.veth import Net, veth_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bench.comparison import Arms, Group
    from lab.namespace import Namespace
    from lab.veth import End

WIRE_BYTES = 14 + 20 + 8 + 44
"""Ethernet, IPv4, UDP and our own header, as a shaper or policer counts them."""
SEGMENT_BYTES = 1408
"""Payload of a full frame at MTU 1500 (docs/inside/wire.md)."""
RATE_BPS = 10**9
"""Of the shaper and the policer."""


RAW_XDP = {f"raw AF_XDP, {batch}{' spinning' if spin else ''}": (spin, ["--batch", str(batch)])
           for batch in (16, 64) for spin in ((), ("--spin",))}
"""Settings of the raw blast; the best counts: a receiver that sleeps or polls, and frames between
two system calls."""


# The kernel's stack, best of its settings

def tcp_arms(bench: Bench, a: End, b: End) -> Arms:
    """Kernel TCP by the number of sockets and congestion control."""
    program = build("tcp_blast")

    def arm(options: Sequence[str]) -> Callable[[], Sample]:
        return lambda: one_way(
            a.space, b.space, [program, "receive", *options, *_window(bench)],
            [program, "send", "--to", b.ipv4, "--cpu", str(bench.cpus[0]), *options], gbps)

    return {name: arm(options) for name, options in TCP.items()}


def tcp_both_arms(bench: Bench, a: End, b: End) -> Arms:
    """Kernel TCP with bytes in both directions on every socket, one thread an end."""
    program = build("tcp_blast")

    def arm(options: Sequence[str]) -> Callable[[], Sample]:
        return lambda: one_way(
            a.space, b.space, [program, "receive", "--both", *options, *_window(bench)],
            [program, "send", "--both", "--to", b.ipv4, "--cpu", str(bench.cpus[0]), *options],
            gbps)

    return {f"{name}, both": arm(options) for name, options in TCP.items()}


def udp_arm(bench: Bench, a: End, b: End) -> Arms:
    """UDP sockets, nothing checked and nothing sent again."""
    program = build("udp_blast")
    return {"raw UDP": lambda: one_way(
        a.space, b.space, [program, "receive", *_window(bench)],
        [program, "send", "--to", b.ipv4, "--cpu", str(bench.cpus[0])], gbps)}


def xdp_arm(bench: Bench, a: End, b: End, mtu: int) -> Arms:
    """AF_XDP in copy mode, nothing checked and nothing sent again."""
    program = build("xdp_blast")

    def arm(receive: Sequence[str], send: Sequence[str]) -> Callable[[], Sample]:
        return lambda: one_way(
            a.space, b.space, [program, "receive", b.device, "--copy", *receive, *_window(bench)],
            [program, "send", a.device, "--copy", *send, "--cpu", str(bench.cpus[0]), "--frame",
             str(mtu + 14), "--to-mac", b.mac, "--to-ip", b.ipv4, "--from-ip", a.ipv4,
             "--seconds", "3600"], gbps)

    return {name: arm(*options) for name, options in RAW_XDP.items()}


# The stack

def harp_arms(bench: Bench, a: End, b: End, port: str,
              variants: Mapping[str, tuple[str, ...]]) -> Arms:
    """Run the stack over one of its ports, by the name of each variant and its options."""
    return {name: harp_arm(bench, a.space, b.space, port, options, at_a=["--interface", a.device],
                           at_b=["--interface", b.device])
            for name, options in variants.items()}


def harp_arm(bench: Bench, a: Namespace, b: Namespace, port: str, options: Sequence[str], *,
             at_a: Sequence[str] = (), at_b: Sequence[str] = (),
             unit_of: Callable[[dict[str, Any]], float] = gbps) -> Callable[[], Sample]:
    """Run the stack between two namespaces."""
    program = build("harp_bench")

    def words(cpu: int, end: Sequence[str]) -> list[str]:
        return ["--port", port, "--cpu", str(cpu), *end, *options]

    return lambda: one_way(
        a, b, [program, "receive", *words(bench.cpus[1], at_b), "--seconds", str(bench.seconds)],
        [program, "send", *words(bench.cpus[0], at_a)], unit_of)


def _given(name: str, value: float) -> Arms:
    return {name: lambda: Sample(value)}


def _window(bench: Bench) -> list[str]:
    return ["--cpu", str(bench.cpus[1]), "--seconds", str(bench.seconds)]


# Places

@contextmanager
def udp_pair(bench: Bench) -> Iterator[Arms]:
    """MTU 1500, every offload on."""
    with veth_pair() as (a, b):
        yield {**harp_arms(bench, a, b, "udp", {
            "HARP": (), "HARP, 1 % lost": ("--faults", "drop=1%")}),
            **udp_arm(bench, a, b), **tcp_arms(bench, a, b)}


@contextmanager
def tcp_pair(bench: Bench) -> Iterator[Arms]:
    """MTU 1500, every offload on, one flow; the reference has one socket, too."""
    with veth_pair() as (a, b), veth_pair() as (c, d):
        for end in (a, b):
            end.congestion("cubic")  # Linux's default, whatever this machine is set to
        yield {**harp_arms(bench, a, b, "tcp", {"HARP": ()}), **tcp_arms(bench, c, d)}


@contextmanager
def udp_both_pair(bench: Bench) -> Iterator[Arms]:
    """MTU 1500, every offload on, both ends send as fast as they can."""
    with veth_pair() as (a, b):
        yield {**harp_arms(bench, a, b, "udp", {"HARP, both": ("--both",)}),
               **tcp_both_arms(bench, a, b)}


@contextmanager
def shaped_pair(bench: Bench) -> Iterator[Arms]:
    """A queue of 4 MiB that is emptied at 1 Gb/s."""
    with veth_pair() as (a, b):
        a.shape(RATE_BPS)
        yield {**harp_arms(bench, a, b, "udp", {"HARP": ()}), **_given("rate", payload_gbps())}


def beside_tcp(control: str, flows: int, *settings: str) -> Group:
    """Return the place for a router that TCP flows share, with 1 Gb/s and a queue of 1 MB.

    Not the sender's own queue: the kernel keeps TCP from filling that (tcp_limit_output_bytes).
    """
    @contextmanager
    def group(bench: Bench) -> Iterator[Arms]:
        program = build("tcp_blast")
        options = ["--congestion", control, "--sockets", str(flows)]
        with routed_pair() as (a, b), ExitStack() as stack:
            for space, words in ((b.space, ["receive", "--seconds", "3600"]),
                                 (a.space, ["send", "--to", b.ipv4])):
                process = stack.enter_context(space.start(
                    program, *words, *options, stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL, text=True))
                stack.callback(process.kill)
                if words[0] == "receive" and read_line(process, PATIENCE_S) != "ready\n":
                    raise BenchError("tcp_blast does not receive")
            yield {**harp_arms(bench, a, b, "udp", {"HARP": settings}),
                   **_given("fair share", payload_gbps() / (flows + 1))}
    return group


@contextmanager
def routed_pair() -> Iterator[tuple[End, End]]:
    """Two ends with a router between them, which shapes what leaves it for the second."""
    with Net() as net:
        spaces = net.namespace(), net.namespace(), net.namespace()
        left, hub_left = net.connect(spaces[0], spaces[1])
        hub_right, right = net.connect(spaces[1], spaces[2])
        spaces[1].sysctl("ipv4.ip_forward", 1)
        for space, via in ((spaces[0], hub_left), (spaces[2], hub_right)):
            space.run("ip", "route", "add", "default", "via", via.ipv4)
        hub_right.shape(RATE_BPS, queue_bytes=10**6)
        yield left, right


@contextmanager
def policed_pair(bench: Bench) -> Iterator[Arms]:
    """A policer drops packets above 1 Gb/s."""
    with veth_pair() as (a, b), b.policed(RATE_BPS):
        a.offloads(dict.fromkeys(SEGMENTATION, False))
        yield {**harp_arms(bench, a, b, "udp", {"HARP": ()}), **_given("rate", payload_gbps())}


def payload_gbps() -> float:
    """Payload that fits the shaped rate, headers taken off."""
    return RATE_BPS * 1e-9 * SEGMENT_BYTES / (SEGMENT_BYTES + WIRE_BYTES)


def xdp_pair(mtu: int, *, segmentation: bool = True) -> Group:
    """Return the place for the xdp port: a pair of its own."""
    @contextmanager
    def group(bench: Bench) -> Iterator[Arms]:
        # TCP has a pair of its own, since a program on a veth changes what its peer offloads.
        with veth_pair(mtu=mtu) as (a, b), veth_pair(mtu=mtu) as (c, d):
            # No more frames than the raw blast has: what arrives is written where the cache is.
            arms = harp_arms(bench, a, b, "xdp", {"HARP": ("--frames", "2048")})
            if segmentation:
                arms |= xdp_arm(bench, a, b, mtu)
            else:
                for end in (c, d):
                    end.offloads({**dict.fromkeys(SEGMENTATION, False), "rx-gro": False})
                arms |= tcp_arms(bench, c, d)
            yield arms
    return group


@contextmanager
def memory(bench: Bench) -> Iterator[Arms]:
    """Two processes that share memory, a CPU each; the copies are of 256 MiB of memory."""
    copy = build("memcpy_rate")
    line = build("line_rtt")
    arms: Arms = {
        "memcpy": lambda: alone([copy, str(bench.cpus[0]), str(bench.seconds)], gbps),
        "a cache line": lambda: alone([line, *map(str, bench.cpus), str(bench.seconds)],
                                      lambda got: float(got["median_us"]))}
    with Net() as net:
        space = net.namespace()
        arms["HARP, 1 MiB"] = harp_arm(
            bench, space, space, "mem", ["--memory", str(256 << 20), "--flight", "8"])
        arms["HARP, 64 B"] = harp_arm(
            bench, space, space, "mem", ["--size", "64", "--flight", "256"],
            unit_of=lambda got: float(got["packets"]) / float(got["seconds"]) / 1e6)
        arms["HARP, ping-pong"] = harp_arm(
            bench, space, space, "mem", ["--size", "64", "--ping"],
            unit_of=lambda got: float(got["median_us"]))
        yield arms


@contextmanager
def one_process(bench: Bench) -> Iterator[Arms]:
    """Engines that talk to themselves: separate engines cannot slow each other down."""
    def pairs(engines: int) -> Callable[[], Sample]:
        return lambda: alone([build("harp_bench"), "pairs", "--port", "mem", "--engines",
                              str(engines), "--cpu", "0", "--seconds", str(bench.seconds)], gbps)

    yield {"one engine": pairs(1), "two engines": pairs(2)}


CONNS = {f"conns-{idle}-{port}{suffix}": (idle, port, kind)
         for idle, port in ((1000, "udp"), (10_000, "udp"), (1000, "mem"), (10_000, "mem"))
         for kind, suffix in (("bulk", ""), ("ping", "-rtt"))}
"""One busy connection beside idle ones: how many, over what, goodput or round trips a second."""


@contextmanager
def beside_idle(bench: Bench) -> Iterator[Arms]:
    """Two engines that one thread drives, with one busy connection among many."""
    def arm(idle: int, port: str, kind: str) -> Callable[[], Sample]:
        return lambda: alone([build("idle_bench"), port, str(idle), kind, str(bench.cpus[0]),
                              str(bench.seconds)], lambda got: float(got["rate"]))

    yield {f"{port} {kind}, {idle} idle": arm(idle, port, kind)
           for port in ("udp", "mem") for kind in ("bulk", "ping") for idle in (0, 1000, 10_000)}


@contextmanager
def transport(bench: Bench) -> Iterator[Arms]:
    """Two sessions back to back in one thread, with CRC and tag, without copies."""
    program = build("session_cost")

    def cost() -> Sample:
        done = subprocess.run([str(program), str(bench.seconds)], capture_output=True, text=True,
                              check=True)
        found = re.search(r"^4 MiB, sealed, swift +([0-9.]+) ns a frame", done.stdout, re.MULTILINE)
        if not found:
            raise BenchError(f"session_cost has no row of sealed frames:\n{done.stdout}")
        return Sample(float(found[1]), 1.0)

    yield {"transport": cost}


emulated = emulated_at(1500)


ROWS = by_id((
    ArmRow("zc-tcp", "xdp, zero copy, streamed, emulated NICs", emulated, "HARP, zero copy",
           against=tuple(TCP), target=1.94, aim=2.5),
    ArmRow("zc-raw", "the same", emulated, "HARP, zero copy", against=("raw zero copy",),
           target=0.8),
    ArmRow("zc-copy", "the same", emulated, "HARP, zero copy", against=("HARP, copy mode",),
           target=3.0),
    *(ArmRow(f"zc-tcp-{mtu}", what, emulated_at(mtu, "HARP, zero copy", *TCP),
             "HARP, zero copy", against=tuple(TCP), target=1.94)
      for mtu, what in ((3400, "the same at MTU 3400"), (8500, "the same at 3686, TCP at 8500"))),
    ArmRow("udp-tcp", "udp port over veth, MTU 1500, one flow", udp_pair, "HARP",
           against=tuple(TCP), target=1.3, aim=1.6),
    ArmRow("tcp-port", "tcp port over veth, MTU 1500, one flow", tcp_pair, "HARP",
           against=("TCP CUBIC, 1",), target=0.9),
    ArmRow("tcp-2-paths", "tcp port, two links of 1 Gb/s", two_links, "HARP, two links",
           against=("HARP, one link",), target=1.9),
    ArmRow("tcp-dead-flow", "longest pause as one of two flows dies", dead_flow,
           "HARP, a flow dies", unit="ms", target=1000.0, lower=True),
    ArmRow("udp-raw", "the same", udp_pair, "HARP", against=("raw UDP",), target=0.8),
    ArmRow("udp-both", "udp port over veth, both ways at once", udp_both_pair, "HARP, both",
           against=tuple(f"{name}, both" for name in TCP), target=1.0, aim=1.3),
    ArmRow("udp-loss", "udp port, 1 % random loss each way", udp_pair, "HARP, 1 % lost",
           against=("HARP",), target=0.8),
    ArmRow("udp-1g", "udp port shaped to 1 Gb/s", shaped_pair, "HARP", against=("rate",),
           target=0.97, limits={"rtt_inflation_ms": 2.0}),
    *(ArmRow(f"udp-beside-{control}-{flows}",
          f"beside {flows} {control.upper()}, 1 Gb/s, a queue of 1 MB",
          beside_tcp(control, flows), "HARP", against=("fair share",), target=0.35,
          least_s=4.0)  # windows of CUBIC and BBR move in seconds
      for control in ("cubic", "bbr") for flows in (1, 4)),
    ArmRow("udp-policed", "udp port through a policer of 1 Gb/s", policed_pair, "HARP",
           against=("rate",), target=0.9, limits={"again_share": 0.05}),
    ArmRow("mem-1MiB", "mem port, 1 MiB posted messages", memory, "HARP, 1 MiB",
           against=("memcpy",), target=0.8),
    ArmRow("mem-64B", "mem port, 64 B messages", memory, "HARP, 64 B", unit="M/s", target=5.0),
    ArmRow("mem-rtt", "mem port, 64 B there and back, two CPUs", memory, "HARP, ping-pong",
           unit="µs", target=1.0, lower=True, floor="a cache line"),
    ArmRow("frame-cost", "transport alone, 4 KiB frames, an end", transport, "transport", unit="ns",
           target=300.0, aim=200.0, lower=True),
    ArmRow("engines-2", "two engines on two cores", one_process, "two engines",
           against=("one engine",), target=1.8),
    *(ArmRow(name, f"{port}, {'MiB' if kind == 'bulk' else 'round trips'} beside {idle:,} idle",
             beside_idle, f"{port} {kind}, {idle} idle", unit="/s",
             against=(f"{port} {kind}, 0 idle",), target=0.9 if idle == 1000 else 0.7)
      for name, (idle, port, kind) in CONNS.items()),
    ArmRow("xdp-3400", "xdp port over veth, MTU 3400", xdp_pair(3400), "HARP",
           against=tuple(RAW_XDP), target=0.85),
    ArmRow("xdp-1500", "xdp port over veth, MTU 1500", xdp_pair(1500), "HARP",
           against=tuple(RAW_XDP), target=0.85),
    ArmRow("xdp-9000", "xdp port over veth, MTU 9000", xdp_pair(9000, segmentation=False), "HARP",
           against=tuple(TCP), target=1.0),
))
SUBJECT = compare(__doc__, ROWS)
