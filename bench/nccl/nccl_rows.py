"""Speed of the NCCL plugin against kernel TCP as NCCL's own Socket transport uses it.

The client of lab/nccl_client drives every plugin: it posts, polls and yields as NCCL's
progress thread does, with 4 MiB messages, 8 in flight, one CPU for each end. The reference
(tcp_ref.h there) runs at the best of its settings. Needs root.
"""

from __future__ import annotations

import subprocess
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.arms import RELEASE, Bench, Sample, alone, build, gbps, one_way
from bench.comparison import ArmRow, compare
from bench.rows import by_id
from bench.stack import emulated as machine
from lab import nccl_pair
from lab.offloads import SEGMENTATION
from lab.veth import veth_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from bench.comparison import Arms, Group
    from lab.namespace import Namespace


OFFLOADS_OFF = {**dict.fromkeys(SEGMENTATION, False), "rx-gro": False}

TCP = {f"TCP {control.upper()}, {sockets}": {"TCP_REF_CONGESTION": control,
                                             "TCP_REF_SOCKETS": str(sockets)}
       for control in ("cubic", "bbr") for sockets in (1, 2, 4)}
"""Settings of the reference; the best counts."""

NCCL_TCP = {f"TCP {control.upper()}, as NCCL": {"TCP_REF_CONGESTION": control,
                                                       "TCP_REF_SOCKETS": "1"}
            for control in ("cubic", "bbr")}
"""The reference as NCCL sets its sockets by itself, off AWS and GCP: NCCL_NSOCKS_PERTHREAD and
NCCL_SOCKET_NTHREADS 1. The host sets the congestion control; the best counts."""

OWN = "HARP, default settings"
DEFAULT: dict[str, dict[str, str]] = {OWN: {}}
"""HARP with its defaults; its rows show the best of other settings beside."""

RING = {f"ring of {kib} KiB": kib << 10 for kib in (4, 32, 256)}
"""Slots of the reference for memory; the best counts."""


TCP_ONLY = {"HARP tcp": {"HARP_PORT": "tcp"}}
"""Kernel TCP, which `auto` takes between veth ends; row `nccl-tcp` shows the plugin's own cost."""


def harp(port: str) -> dict[str, dict[str, str]]:
    """Give the plugin's settings by the name of its arm."""
    return {f"HARP {port}, {mode}": {"HARP_PORT": port, "HARP_PROGRESS": mode}
            for mode in ("inline", "threads")}


OTHERS = {**harp("udp"), **harp("xdp")}
"""Settings that are shown beside the default ones."""

RING_TIMED_BYTES = 64 << 10


def words(plugin: Path | str, setting: Mapping[str, str], scenario: str, cpu: int, bench: Bench,
          client: Path | str, options: Sequence[str] = ()) -> list[str | Path]:
    """Return the command of one end."""
    return ["env", *(f"{name}={value}" for name, value in setting.items()), client, "--cpu",
            str(cpu), "--seconds", str(bench.seconds), "--limit", "120", *options, plugin, scenario]


def arms(bench: Bench, ends: tuple[Namespace, Namespace], plugin: Path,
         settings: Mapping[str, Mapping[str, str]], scenario: str = "speed",
         unit_of: Callable[[dict[str, Any]], float] = gbps, options: Sequence[str] = ()) -> Arms:
    """Run one plugin between two namespaces, with each of its settings."""
    client = nccl_pair.client(RELEASE)

    def one(setting: Mapping[str, str]) -> Callable[[], Sample]:
        receive, send = (words(plugin, setting, scenario, bench.cpus[end], bench, client, options)
                         for end in (1, 0))
        return lambda: one_way(*ends, receive, send, unit_of)

    return {name: one(setting) for name, setting in settings.items()}


def ours(bench: Bench, ends: tuple[Namespace, Namespace], port: str, **more: Any) -> Arms:
    """HARP over one of its ports."""
    return arms(bench, ends, nccl_pair.harp(RELEASE), harp(port), **more)


def theirs(bench: Bench, ends: tuple[Namespace, Namespace], **more: Any) -> Arms:
    """Run the reference."""
    return arms(bench, ends, nccl_pair.tcp_ref(RELEASE), TCP, **more)


# Places

@contextmanager
def udp_pair(bench: Bench) -> Iterator[Arms]:
    """MTU 1500, every offload on."""
    with veth_pair() as (a, b):
        ends = (a.space, b.space)
        yield {**ours(bench, ends, "udp"), **theirs(bench, ends)}


def as_it_comes(scenario: str, unit_of: Callable[[dict[str, Any]], float] = gbps,
                *options: str) -> Group:
    """Return the place for the default settings, MTU 1500, every offload on.

    A plugin that takes xdp by default changes the offloads of its pair, so each has its own pair.
    HARP's TCP has the congestion control of its host, as NCCL's sockets have: here Linux's default,
    whatever this machine is set to; the reference is tried with BBR, too.
    """
    @contextmanager
    def group(bench: Bench) -> Iterator[Arms]:
        with veth_pair() as (a, b), veth_pair() as (c, d):
            for end in (a, b):
                end.congestion("cubic")
            more: dict[str, Any] = {"scenario": scenario, "unit_of": unit_of, "options": options}
            plugin = nccl_pair.harp(RELEASE)
            ours = {**DEFAULT, **TCP_ONLY, **OTHERS}
            yield {**arms(bench, (a.space, b.space), plugin, ours, **more),
                   **arms(bench, (c.space, d.space), nccl_pair.tcp_ref(RELEASE), NCCL_TCP, **more)}
    return group


def ring(size: int) -> Group:
    """Return the place for allreduces of ``size`` bytes between two ranks of a ring.

    The figure of small ones is the time of one, that of large ones bytes over time.
    """
    def us(got: dict[str, Any]) -> float:
        return float(got["seconds"]) * 1e6 * size / float(got["bytes"])

    return as_it_comes("ring", gbps if size > RING_TIMED_BYTES else us, "--size", str(size))


CROWDS = (2, 4, 8)
"""Processes that others run beside the two ends, as data loaders: each would take a CPU."""


def crowded(busy: int, group: Group) -> Group:
    """Return a place in which ``busy`` processes that never sleep compete for the CPUs."""
    @contextmanager
    def among_others(bench: Bench) -> Iterator[Arms]:
        with ExitStack() as stack:
            for _ in range(busy):
                other = subprocess.Popen(["sh", "-c", "while :; do :; done"])
                stack.callback(other.wait)
                stack.callback(other.kill)
            yield stack.enter_context(group(bench))
    return among_others


@contextmanager
def xdp_pair(bench: Bench) -> Iterator[Arms]:
    """MTU 9000; TCP has a pair of its own, since a program on a veth changes what it offloads."""
    with veth_pair(mtu=9000) as (a, b), veth_pair(mtu=9000) as (c, d):
        for end in (c, d):
            end.offloads(OFFLOADS_OFF)
        yield {**ours(bench, (a.space, b.space), "xdp"), **theirs(bench, (c.space, d.space))}


@contextmanager
def latency(bench: Bench) -> Iterator[Arms]:
    """8 bytes there and back, MTU 1500."""
    with veth_pair() as (a, b), veth_pair() as (c, d):
        found: Arms = {}
        for what in ("median", "p99"):
            more: dict[str, Any] = {"scenario": "latency",
                                    "unit_of": partial(_number, f"{what}_us")}
            every = {**ours(bench, (a.space, b.space), "udp", **more),
                     **ours(bench, (a.space, b.space), "xdp", **more),
                     **theirs(bench, (c.space, d.space), **more)}
            found |= {f"{name}, {what}": one for name, one in every.items()}
        yield found


def _number(key: str, got: dict[str, Any]) -> float:
    return float(got[key])


def lossy(share: float) -> Group:
    """Return a link that drops this share of the packets each way, offloads off."""
    @contextmanager
    def group(bench: Bench) -> Iterator[Arms]:
        with veth_pair() as (a, b), ExitStack() as stack:
            for end in (a, b):
                end.offloads(OFFLOADS_OFF)
                stack.enter_context(end.losing(share))
            ends = (a.space, b.space)
            yield {**ours(bench, ends, "udp"), **theirs(bench, ends)}
    return group


@contextmanager
def memory(bench: Bench) -> Iterator[Arms]:
    """Two processes of one host."""
    ring = build("shared_ring")
    with veth_pair() as (a, _):
        yield {**ours(bench, (a.space, a.space), "mem"), **{
            name: partial(alone, [str(ring), *map(str, bench.cpus), str(bench.seconds), str(size)],
                          gbps) for name, size in RING.items()}}


@contextmanager
def emulated(bench: Bench) -> Iterator[Arms]:
    """Two virtio_net NICs with zero copy, in an emulated machine."""
    client, plugins = nccl_pair.client(RELEASE), {
        "HARP": nccl_pair.harp(RELEASE), "TCP": nccl_pair.tcp_ref(RELEASE)}
    settings = {**harp("xdp"), **TCP}
    wanted: dict[str, tuple[list[str], list[str]]] = {}
    for name, setting in settings.items():
        plugin = f"/programs/{plugins[name.split()[0]].name}"
        receive, send = (list(map(str, words(plugin, setting, "speed", cpu, bench, client.name)))
                         for cpu in (1, 0))
        wanted[name] = (receive, send)
    found: dict[str, list[Sample]] = {}

    def one(name: str) -> Callable[[], Sample]:
        def take() -> Sample:
            if not found:
                found.update(machine.run(bench, wanted, [client, *plugins.values()]))
            return found[name].pop(0)
        return take

    yield {name: one(name) for name in wanted}


def best(port: str, mode: str = "inline", what: str = "") -> str:
    """Name the arm that a row is about."""
    return f"HARP {port}, {mode}{what}"


def modes(port: str) -> tuple[str, ...]:
    """Name all arms of a port: its best mode counts, as the reference's best setting does."""
    return tuple(harp(port))


def against(what: str = "") -> tuple[str, ...]:
    """Name the reference's arms."""
    return tuple(f"{name}{what}" for name in TCP)


ROWS = by_id((
    ArmRow("nccl-zc", "xdp port, zero copy, emulated NICs", emulated, best("xdp", "threads"),
           against=against(), target=1.94),
    ArmRow("nccl-udp", "udp port over veth, MTU 1500, offloads on", udp_pair, best("udp"),
           also=modes("udp"), against=against(), target=1.2, aim=1.5),
    ArmRow("nccl-xdp", "xdp port over veth, MTU 9000, offloads off", xdp_pair, best("xdp"),
           also=modes("xdp"), against=against(), target=1.0),
    ArmRow("nccl-lat", "8 B there and back, median", latency, best("xdp", "inline", ", median"),
           unit="µs", against=against(", median"), target=0.7, lower=True),
    ArmRow("nccl-lat-p99", "8 B there and back, 99 % within", latency,
           best("xdp", "inline", ", p99"), unit="µs", against=against(", p99"), target=0.5,
           lower=True),
    ArmRow("nccl-loss-0.1", "udp port, 0.1 % lost each way, offloads off", lossy(0.001),
           best("udp"), also=modes("udp"), against=against(), target=1.5),
    ArmRow("nccl-loss-1", "udp port, 1 % lost each way, offloads off", lossy(0.01), best("udp"),
           also=modes("udp"), against=against(), target=1.5),
    ArmRow("nccl-mem", "mem port between two processes", memory, best("mem"), also=modes("mem"),
           against=tuple(RING), target=0.5),
    ArmRow("nccl-tcp", "tcp port over veth, MTU 1500", as_it_comes("speed"), "HARP tcp",
           against=tuple(NCCL_TCP), target=0.95, aim=1.0),
    ArmRow("nccl-default", "default settings over veth, MTU 1500", as_it_comes("speed"), OWN,
           against=tuple(NCCL_TCP), beside=tuple(OTHERS), target=1.0),
    ArmRow("nccl-512KiB", "messages of 512 KiB, default settings",
           as_it_comes("speed", gbps, "--size", str(512 << 10)), OWN, against=tuple(NCCL_TCP),
           beside=tuple(OTHERS), target=1.0),
    ArmRow("nccl-both", "both ways at once, default settings", as_it_comes("both"), OWN,
           against=tuple(NCCL_TCP), beside=tuple(OTHERS), target=1.0, aim=1.2),
    ArmRow("nccl-ring-8B", "allreduce of 8 B, default settings", ring(8), OWN, unit="µs",
           against=tuple(NCCL_TCP), beside=tuple(OTHERS), target=1.0, lower=True),
    ArmRow("nccl-ring-64KiB", "allreduce of 64 KiB, default settings", ring(64 << 10), OWN,
           unit="µs", against=tuple(NCCL_TCP), beside=tuple(OTHERS), target=0.9, lower=True),
    ArmRow("nccl-ring-64MiB", "allreduce of 64 MiB, default settings", ring(64 << 20), OWN,
           against=tuple(NCCL_TCP), beside=tuple(OTHERS), target=1.2),
    *(ArmRow(f"crowded-{busy}-8B", f"allreduce of 8 B beside {busy} busy processes",
             crowded(busy, ring(8)), OWN, unit="µs", against=tuple(NCCL_TCP),
             beside=tuple(OTHERS), target=1.1, lower=True) for busy in CROWDS),
    *(ArmRow(f"crowded-{busy}-64MiB", f"allreduce of 64 MiB beside {busy} busy processes",
             crowded(busy, ring(64 << 20)), OWN, against=tuple(NCCL_TCP), beside=tuple(OTHERS),
             target=0.9) for busy in CROWDS),
))
SUBJECT = compare(__doc__, ROWS)
