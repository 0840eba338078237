"""The rows of `stack.py`: what is compared with what, where, and what is aimed at.

A group is a place (a pair of namespaces, an emulated machine, this machine's memory) with the arms
that can be measured in it, by name. A row names the arm that it is about and those that it is held
against, of which the best counts.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from netns import SEGMENTATION, veth_pair
from stack_arms import Bench, Sample, alone, build, gbps, one_way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from netns import End

    Arms = dict[str, Callable[[], Sample]]
    Group = Callable[[Bench], AbstractContextManager[Arms]]

WIRE_BYTES = 14 + 20 + 8 + 44
"""Ethernet, IPv4, UDP and our own header, as a shaper or policer counts them."""
SEGMENT_BYTES = 1408
"""Payload of a full frame at MTU 1500 (docs/wire.md)."""
RATE_BPS = 10**9
"""Of the shaper and the policer."""


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    id: str
    what: str
    group: Group
    value: str
    unit: str = "Gb/s"
    against: tuple[str, ...] = ()
    """Arms, of which the best counts as the reference."""
    target: float = 1.0
    """Least ratio; without a reference the value's bound: least, or most where lower is better."""
    aim: float | None = None
    lower: bool = False
    limits: Mapping[str, float] = field(default_factory=dict)
    """Most that the arm's further figures may be."""


# The kernel's stack, best of its settings

CONTROLS = ("cubic", "bbr")
SOCKETS = (1, 2, 4)
TCP = tuple(f"TCP {control.upper()}, {n}" for control in CONTROLS for n in SOCKETS)


def tcp_arms(bench: Bench, a: End, b: End) -> Arms:
    """Kernel TCP by the number of sockets and congestion control."""
    program = _built("tcp_blast")

    def arm(control: str, sockets: int) -> Callable[[], Sample]:
        common = ["--sockets", str(sockets), "--congestion", control]
        return lambda: one_way(
            a.space, b.space, [program, "receive", *common, *_window(bench)],
            [program, "send", "--to", b.ipv4, "--cpu", str(bench.cpus[0]), *common], gbps)

    return {f"TCP {control.upper()}, {n}": arm(control, n) for control in CONTROLS
            for n in SOCKETS}


def udp_arm(bench: Bench, a: End, b: End) -> Arms:
    """UDP sockets, nothing checked and nothing sent again."""
    program = _built("udp_blast")
    return {"raw UDP": lambda: one_way(
        a.space, b.space, [program, "receive", *_window(bench)],
        [program, "send", "--to", b.ipv4, "--cpu", str(bench.cpus[0])], gbps)}


def xdp_arm(bench: Bench, a: End, b: End, mtu: int) -> Arms:
    """AF_XDP in copy mode, nothing checked and nothing sent again."""
    program = _built("xdp_blast")
    return {"raw AF_XDP": lambda: one_way(
        a.space, b.space, [program, "receive", b.device, "--copy", *_window(bench)],
        [program, "send", a.device, "--copy", "--cpu", str(bench.cpus[0]), "--frame",
         str(mtu + 14), "--to-mac", b.mac, "--to-ip", b.ipv4, "--from-ip", a.ipv4,
         "--seconds", "3600"], gbps)}


# The stack

def harp_arms(bench: Bench, a: End, b: End, port: str,
              variants: Mapping[str, tuple[str, ...]]) -> Arms:
    """Run the stack over one of its ports, by the name of each variant and its options."""
    program = build("harp_bench")
    if program is None or not (program.parent.parent.parent / "cnet" / f"port_{port}.c").exists():
        return {}

    def arm(options: tuple[str, ...]) -> Callable[[], Sample]:
        def at(end: End, cpu: int) -> list[str]:
            return ["--port", port, "--interface", end.device, "--cpu", str(cpu), *options]

        return lambda: one_way(
            a.space, b.space,
            [program, "receive", *at(b, bench.cpus[1]), "--seconds", str(bench.seconds)],
            [program, "send", *at(a, bench.cpus[0])], gbps)

    return {name: arm(options) for name, options in variants.items()}


def _given(name: str, value: float) -> Arms:
    return {name: lambda: Sample(value)}


def _window(bench: Bench) -> list[str]:
    return ["--cpu", str(bench.cpus[1]), "--seconds", str(bench.seconds)]


def _built(name: str) -> Path:
    program = build(name)
    assert program is not None
    return program


# Places

@contextmanager
def udp_pair(bench: Bench) -> Iterator[Arms]:
    """MTU 1500, every offload on."""
    with veth_pair() as (a, b):
        yield {**harp_arms(bench, a, b, "udp", {
            "HARP": (), "HARP, 1 % lost": ("--faults", "drop=0.01")}),
            **udp_arm(bench, a, b), **tcp_arms(bench, a, b)}


@contextmanager
def shaped_pair(bench: Bench) -> Iterator[Arms]:
    """A queue of 4 MiB that is emptied at 1 Gb/s."""
    with veth_pair() as (a, b):
        a.shape(RATE_BPS)
        yield {**harp_arms(bench, a, b, "udp", {"HARP": ()}), **_given("rate", payload_gbps())}


@contextmanager
def policed_pair(bench: Bench) -> Iterator[Arms]:
    """Whatever is faster than 1 Gb/s is dropped, packet by packet."""
    with veth_pair() as (a, b), b.policed(RATE_BPS):
        a.features(dict.fromkeys(SEGMENTATION, False))
        yield {**harp_arms(bench, a, b, "udp", {"HARP": ()}), **_given("rate", payload_gbps())}


def payload_gbps() -> float:
    """Payload that fits the shaped rate, headers taken off."""
    return RATE_BPS * 1e-9 * SEGMENT_BYTES / (SEGMENT_BYTES + WIRE_BYTES)


def xdp_pair(mtu: int, *, segmentation: bool = True) -> Group:
    """Return the place for the xdp port: a pair of which nothing else is measured."""
    @contextmanager
    def group(bench: Bench) -> Iterator[Arms]:
        # TCP has a pair of its own, since a program on a veth changes what its peer offloads.
        with veth_pair(mtu=mtu) as (a, b), veth_pair(mtu=mtu) as (c, d):
            arms = harp_arms(bench, a, b, "xdp", {"HARP": ()})
            if segmentation:
                arms |= xdp_arm(bench, a, b, mtu)
            else:
                for end in (c, d):
                    end.features({**dict.fromkeys(SEGMENTATION, False), "rx-gro": False})
                arms |= tcp_arms(bench, c, d)
            yield arms
    return group


@contextmanager
def memory(bench: Bench) -> Iterator[Arms]:
    """Two processes that share memory, a CPU each."""
    copy = _built("memcpy_rate")
    yield {"memcpy": lambda: alone([copy, str(bench.cpus[0]), str(bench.seconds)], gbps)}


ROWS = {row.id: row for row in (
    Row("udp-tcp", "udp port over veth, MTU 1500, one flow", udp_pair, "HARP", against=TCP,
        target=1.3, aim=1.6),
    Row("udp-raw", "the same", udp_pair, "HARP", against=("raw UDP",), target=0.8),
    Row("udp-loss", "udp port, 1 % random loss each way", udp_pair, "HARP, 1 % lost",
        against=("HARP",), target=0.8),
    Row("udp-1g", "udp port shaped to 1 Gb/s", shaped_pair, "HARP", against=("rate",), target=0.97,
        limits={"rtt_inflation_ms": 2.0}),
    Row("udp-policed", "udp port through a policer of 1 Gb/s", policed_pair, "HARP",
        against=("rate",), target=0.9, limits={"again_share": 0.05}),
    Row("mem-1MiB", "mem port, 1 MiB posted messages", memory, "HARP, 1 MiB",
        against=("memcpy",), target=0.8),
    Row("mem-64B", "mem port, 64 B messages", memory, "HARP, 64 B", "M/s", target=5.0),
    Row("mem-rtt", "mem port, 64 B there and back, two CPUs", memory, "HARP, ping-pong", "µs",
        target=1.0, lower=True),
    Row("frame-cost", "transport alone, 4 KiB frames, an end", memory, "transport", "ns",
        target=300.0, aim=200.0, lower=True),
    Row("engines-2", "two engines on two cores", memory, "two engines", against=("one engine",),
        target=1.8),
    Row("xdp-3400", "xdp port over veth, MTU 3400, copy mode", xdp_pair(3400), "HARP",
        against=("raw AF_XDP",), target=0.85),
    Row("xdp-1500", "xdp port over veth, MTU 1500, copy mode", xdp_pair(1500), "HARP",
        against=("raw AF_XDP",), target=0.85),
    Row("xdp-9000", "xdp port over veth, MTU 9000, multi-buffer",
        xdp_pair(9000, segmentation=False), "HARP", against=TCP, target=1.0),
)}
