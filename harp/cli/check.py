"""``harp check``: report what this host can do for HARP, and what to change, one line each.

The command is read-only: it changes no setting, attaches no program and sends no packet. It needs
no privileges; without them it says what it could not see.
"""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harp._cnet import ffi, lib
from harp.net.nics import ZERO_COPY_MTU_BYTES, Nic, gpus, nics, usable_queues

if TYPE_CHECKING:
    from collections.abc import Iterator

AF_XDP = 44
UDP_SEGMENT, UDP_GRO = 103, 104
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13, "CAP_IPC_LOCK": 14, "CAP_BPF": 39}


@dataclass(frozen=True)
class Finding:
    """The state of one topic and what to change; ``state`` is ok, better or missing."""

    topic: str
    state: str
    found: str
    change: str = ""


def findings() -> list[Finding]:
    """All findings about this host except its interfaces."""
    return [*kernel(), *rights(), *memory(), *cpu(), *udp()]


def kernel() -> Iterator[Finding]:
    """Features of this kernel's AF_XDP."""
    release = platform.release()
    match = re.match(r"(\d+)\.(\d+)", release)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    needs = [((5, 11), "the xdp port"),
             ((6, 17), "sending more than 32 packets a call in xdp's copy mode")]
    lacks = [f"{what} needs {first}.{second}" for (first, second), what in needs
             if version < (first, second)]
    yield Finding("kernel", "better" if lacks else "ok", f"Linux {release}", "; ".join(lacks))
    try:
        socket.socket(AF_XDP, socket.SOCK_RAW, 0).close()
    except PermissionError:
        yield Finding("AF_XDP", "better", "not permitted for this user",
                      "the xdp port needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF")
    except OSError as error:
        yield Finding("AF_XDP", "missing", f"no such sockets: {error.strerror}",
                      "a kernel with CONFIG_XDP_SOCKETS=y")
    else:
        yield Finding("AF_XDP", "ok", "sockets can be opened")


def rights() -> Iterator[Finding]:
    """Capabilities, and how much memory may be locked."""
    has = int(_field("/proc/self/status", "CapEff") or "0", 16)
    lacks = [name for name, bit in CAPABILITIES.items() if not has >> bit & 1]
    yield Finding("rights", "better" if lacks else "ok",
                  f"user {os.geteuid()}, " + (f"without {', '.join(lacks)}" if lacks else
                                              "with all capabilities that the xdp port uses"),
                  "the udp and mem ports need none; for xdp: setcap or run as root"
                  if lacks else "")
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    free = limit == resource.RLIM_INFINITY or "CAP_IPC_LOCK" not in lacks
    text = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit >> 10} KiB"
    yield Finding("memlock", "ok" if free else "better",
                  f"{text}{', but CAP_IPC_LOCK' if free and text != 'unlimited' else ''}",
                  "" if free else "xdp locks an engine's frames: ulimit -l unlimited")


def memory() -> Iterator[Finding]:
    """Huge pages, NUMA nodes, shared memory for counters."""
    pools = []
    for pool in sorted(Path("/sys/kernel/mm/hugepages").glob("hugepages-*kB")):
        kib = int(pool.name.removeprefix("hugepages-").removesuffix("kB"))
        pools.append((kib, _int(pool / "free_hugepages")))
    free = sum(count for _, count in pools)
    sizes = ", ".join(f"{count} of {_size(kib)}" for kib, count in pools) or "none in this kernel"
    yield Finding("huge pages", "ok" if free else "better", f"free: {sizes}",
                  "" if free else "an engine takes 16 MiB and more: "
                                  "echo 64 > /proc/sys/vm/nr_hugepages")
    nodes = len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1
    yield Finding("NUMA", "ok", f"{nodes} node{'s' if nodes > 1 else ''}",
                  "give each engine the node and a CPU of its interface" if nodes > 1 else "")
    shared = os.access("/dev/shm", os.W_OK)
    yield Finding("/dev/shm", "ok" if shared else "better",
                  "writable" if shared else "not writable",
                  "" if shared else "harp top cannot see this user's engines without it")


def cpu() -> Iterator[Finding]:
    """CPUs, and the fastest CRC32C routine here."""
    usable = len(os.sched_getaffinity(0))
    model = _field("/proc/cpuinfo", "model name") or platform.machine()
    yield Finding("CPU", "ok" if usable > 1 else "better", f"{usable} usable, {model}",
                  "" if usable > 1 else "a polling engine needs a CPU of its own")
    names: list[str] = []
    while (name := lib.harp_crc32c_name(len(names))) != ffi.NULL:
        names.append(ffi.string(name).decode())
    chosen = ffi.string(lib.harp_crc32c_choose()).decode()
    yield Finding("CRC32C", "ok" if chosen != "table" else "better",
                  f"{chosen} is the fastest of {', '.join(names)}",
                  "" if chosen != "table" else "no CRC or carry-less multiplication in this CPU")


def udp() -> Iterator[Finding]:
    """Features of the kernel's UDP that the udp port uses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        lacks = [name for name, option in (("UDP_SEGMENT", UDP_SEGMENT), ("UDP_GRO", UDP_GRO))
                 if not _accepts(probe, option)]
    yield Finding("UDP", "better" if lacks else "ok",
                  f"without {' and '.join(lacks)}" if lacks else
                  "the kernel segments and joins datagrams",
                  "Linux 4.18 brings UDP_SEGMENT, 5.0 UDP_GRO" if lacks else "")
    for key in ("rmem_max", "wmem_max"):
        most = _int(Path("/proc/sys/net/core") / key)
        enough = most >= lib.HARP_SOCKET_BYTES or os.geteuid() == 0
        yield Finding(key, "ok" if enough else "better", f"{most >> 10} KiB",
                      "" if enough else f"sysctl -w net.core.{key}={lib.HARP_SOCKET_BYTES}: "
                                        "fewer losses of the udp port in bursts")


def nic_line(nic: Nic, engines: int = 1) -> Finding:
    """Describe an interface that ``engines`` engines will share."""
    parts = [nic.driver or "driver unknown", f"XDP {nic.xdp or 'unknown'}",
             f"{nic.queues} queue{'s' if nic.queues != 1 else ''}", f"MTU {nic.mtu}"]
    if nic.rss:
        parts.append(f"RSS {nic.rss}")
    if nic.ntuple:
        parts.append(f"ntuple {nic.ntuple}")
    if nic.node is not None and nic.node >= 0:
        parts.append(f"node {nic.node}")
    changes = list(_changes(nic, engines))
    return Finding(nic.name, "better" if changes else "ok", ", ".join(parts), "; ".join(changes))


def _changes(nic: Nic, engines: int) -> Iterator[str]:
    if not nic.up:
        yield f"it is down or without carrier: ip link set {nic.name} up"
        return
    if nic.xdp == "generic":
        yield "its driver has no XDP: use the udp port here"
    if nic.mtu > 3780 and nic.several_buffers is False:
        yield "its driver takes one buffer per packet: xdp uses an MTU of at most 3498"
    elif nic.mtu > ZERO_COPY_MTU_BYTES and nic.xdp == "zero copy":
        yield (f"newer kernels have zero copy up to an MTU of {ZERO_COPY_MTU_BYTES}: "
               f"ip link set {nic.name} mtu {ZERO_COPY_MTU_BYTES}")
    elif nic.mtu < 3000 and nic.xdp in {"zero copy", "native"}:
        yield "a larger MTU, if the network allows it, costs less CPU"
    usable = usable_queues(nic.driver, nic.queues_most or nic.queues)
    wanted = min(engines, usable)
    if nic.queues < wanted:
        yield f"ethtool -L {nic.name} combined {wanted}: one queue per engine"
    if nic.queues > usable:
        yield f"ethtool -L {nic.name} combined {wanted}: XDP needs half of the queues unused"


def _accepts(probe: socket.socket, option: int) -> bool:
    try:
        probe.setsockopt(socket.IPPROTO_UDP, option, 1)
    except OSError:
        return False
    return True


def _field(path: str, name: str) -> str | None:
    try:
        match = re.search(rf"^{re.escape(name)}\s*:\s*(.*)$", Path(path).read_text(), re.M)
    except OSError:
        return None
    return match[1].strip() if match else None


def _int(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _size(kib: int) -> str:
    return f"{kib >> 20} GiB" if kib >= 1 << 20 else f"{kib >> 10} MiB" if kib >= 1024 else \
        f"{kib} KiB"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--topology", is_flag=True,
              help="Print this host as a topology file for the simulator instead.")
def check(*, as_json: bool, topology: bool) -> None:
    """Report what this host can do for HARP, and what to change, one line each.

    Read-only; needs no privileges.
    """
    if topology and as_json:
        raise click.UsageError("--topology prints YAML: leave out --json")
    if topology:
        from harp.cli.this_host import topology_text

        click.echo(topology_text(), nl=False)
        return
    host, cards = findings(), nics()
    engines = -(-gpus() // max(1, len(cards)))
    if as_json:
        interfaces = [asdict(nic) | {"change": nic_line(nic, engines).change} for nic in cards]
        click.echo(json.dumps({"host": [asdict(finding) for finding in host],
                               "interfaces": interfaces}, indent=2, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)
    colours = {"ok": "green", "better": "yellow", "missing": "red"}
    for finding in [*host, *(nic_line(nic, engines) for nic in cards)]:
        change = f"  -> {finding.change}" if finding.change else ""
        console.print(f"[{colours[finding.state]}]{finding.state:<8}[/]{finding.topic:<11} "
                      f"{escape(finding.found + change)}")
