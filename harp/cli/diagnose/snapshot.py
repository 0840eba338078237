"""A host's counters, sampled several times: engines, interfaces, bad checksums.

    {"format": "harp-snapshot-1", "host": "node-7", "moments": [{...}, {...}]}

Times are each host's own; nothing is compared between clocks.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import time
from dataclasses import asdict
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface
from itertools import pairwise
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

FORMAT = "harp-snapshot-1"
MOMENTS = 5
"""Looks at a host; what comes and goes is a mean of them."""
EVENTS = 3
"""The last ones of an engine that are kept."""
SECONDS = 2.0
"""Time from the first sample to the last; a dead path is probed at least ten times a second
(session.md)."""
_SIOCGIFFLAGS, _SIOCGIFADDR, _SIOCGIFNETMASK, _IFF_RUNNING = 0x8913, 0x8915, 0x891B, 0x40


class SnapshotError(ValueError):
    """A file or answer is not a snapshot; one sentence."""


class _Row(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class PathRow(_Row):
    """The used fields of `struct harp_stats_path`."""

    connection: int
    number: int
    local: str
    remote: str
    alive: int
    mtu_fails: int
    fragments: int
    frame_bytes: int
    window_bytes: int
    bytes_in_flight: int
    sent: int
    lost: int
    spurious: int
    died: int
    smoothed_ns: int
    due: int
    arrived: int
    bad_payloads: int


class ConnectionRow(_Row):
    """The used fields of `struct harp_stats_connection`."""

    id: int
    peer_id: int
    starved_ns: int


class EngineRow(_Row):
    """The used fields of `harp.cli.stats_files.Snapshot`."""

    file: str
    alive: bool
    name: str
    pid: int
    started_unix_ns: int = 0
    connections: list[ConnectionRow]
    paths: list[PathRow]
    events: list[tuple[int, int, str]]


class Interface(_Row):
    """A network interface with an address."""

    name: str
    running: bool
    """Up, and with a carrier."""
    addresses: list[str]
    """Addresses with their prefix length: 10.0.1.1/24."""

    @field_validator("addresses")
    @classmethod
    def _are_addresses(cls, texts: list[str]) -> list[str]:
        for text in texts:
            ip_interface(text)
        return texts


class Moment(_Row):
    """One sample."""

    monotonic_ns: int = Field(ge=0)
    engines: list[EngineRow]
    interfaces: list[Interface]
    bad_checksums: int
    """UDP datagrams that this host's kernel dropped for their checksum."""


class Report(_Row):
    """All samples of a host."""

    format: Literal["harp-snapshot-1"]
    host: str = Field(min_length=1, max_length=255)
    moments: list[Moment] = Field(min_length=2, max_length=100)

    @field_validator("moments")
    @classmethod
    def _follow_one_another(cls, moments: list[Moment]) -> list[Moment]:
        if any(later.monotonic_ns <= sooner.monotonic_ns for sooner, later in pairwise(moments)):
            raise ValueError("each has to be later than the one before")
        return moments

    @property
    def seconds(self) -> float:
        """Time from the first sample to the last."""
        return (self.moments[-1].monotonic_ns - self.moments[0].monotonic_ns) * 1e-9


def from_json(text: str | bytes) -> Report:
    """Read a report; raises SnapshotError, one sentence, for anything else."""
    try:
        return Report.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise SnapshotError(f"it is no snapshot of format {FORMAT}: {where + ': ' * bool(where)}"
                            f"{first['msg']}") from error


def to_json(report: Report) -> str:
    """Write one, with no more than is looked at."""
    return report.model_dump_json()


def take_report(host: str, seconds: float = SECONDS, moments: int = MOMENTS) -> Report:
    """Look at this host for a while."""
    looks = [take_moment()]
    begin_s = time.monotonic()
    for number in range(1, moments):
        time.sleep(max(0.0, begin_s + seconds * number / (moments - 1) - time.monotonic()))
        looks.append(take_moment())
    return Report(format=FORMAT, host=host, moments=looks)


def take_moment(pids: tuple[int, ...] = ()) -> Moment:
    """Look once, at the engines of some processes or of all."""
    return Moment(monotonic_ns=time.monotonic_ns(), engines=engines(pids),
                  interfaces=interfaces(), bad_checksums=bad_checksums())


def engines(pids: tuple[int, ...] = ()) -> list[EngineRow]:
    """The engines of this host that this user may see."""
    from harp.cli.stats_files import snapshots

    rows = [EngineRow.model_validate(asdict(engine)) for engine in snapshots(pids, EVENTS)]
    return [row for row in rows if _is_of_this_namespace(row)]


def _is_of_this_namespace(engine: EngineRow) -> bool:
    """Containers may share memory, and so see one another's engines, but not a network."""
    places = {row.local for row in engine.paths} - {""}  # a path that has yet to find its way
    ips = {ip_of(local) for local in places if not local.startswith("mem:")}
    ips = {ip for ip in ips if not ip_address(ip).is_loopback}  # all namespaces have that
    own, other = _namespace_of("thread-self"), _namespace_of(engine.pid)
    if other is None and not ips:  # its process is gone, and it had no network: of the first one
        other = _namespace_of(1) or own
    return own == other or any(map(_is_own, ips))


def _namespace_of(process: int | str) -> int | None:
    """Number of a process's network namespace; None if it has gone or is another user's."""
    try:
        return Path(f"/proc/{process}/ns/net").stat().st_ino
    except OSError:
        return None


def _is_own(ip: str) -> bool:
    """Whether an address is of an interface here."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((ip, 0))
        except OSError:
            return False
        return True


def ip_of(address: str) -> str:
    """10.0.0.1 of 10.0.0.1:7000 and of tcp:10.0.0.1:7000; fd00::1 of [fd00::1]:7000."""
    return address.removeprefix("tcp:").rpartition(":")[0].strip("[]")


def interfaces() -> list[Interface]:
    """The interfaces of this network namespace that have an address."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        inet6 = _inet6_addresses()
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it went away meanwhile
                flags = struct.unpack_from("H", _ask(control, name, _SIOCGIFFLAGS), 16)[0]
                addresses = _inet_addresses(control, name) + inet6.get(name, [])
                if addresses and name != "lo":
                    found.append(Interface(name=name, running=bool(flags & _IFF_RUNNING),
                                           addresses=addresses))
    return found


def _ask(control: socket.socket, name: str, what: int) -> bytes:
    return fcntl.ioctl(control, what, struct.pack("16s24x", name.encode()))


def _inet_addresses(control: socket.socket, name: str) -> list[str]:
    """The first one, as an engine takes it."""
    try:
        address, mask = (socket.inet_ntoa(_ask(control, name, what)[20:24])
                         for what in (_SIOCGIFADDR, _SIOCGIFNETMASK))
    except OSError:
        return []
    return [str(IPv4Interface(f"{address}/{mask}"))]


def _inet6_addresses() -> dict[str, list[str]]:
    """Addresses by interface, without link-local ones."""
    found: dict[str, list[str]] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/thread-self/net/if_inet6").read_text().splitlines():
            digits, _, prefix, scope, _, name = line.split()
            if scope == "00":
                address = IPv6Interface((bytes.fromhex(digits), int(prefix, 16)))
                found.setdefault(name, []).append(str(address))
    return found


def bad_checksums() -> int:
    """InCsumErrors of the kernel's UDP, both families (RFC 4113 counts them in udpInErrors)."""
    count = 0
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = [line.split() for line in
                 Path("/proc/thread-self/net/snmp").read_text().splitlines()
                 if line.startswith("Udp:")]
        count += int(lines[1][lines[0].index("InCsumErrors")])
        count += next(int(line.split()[1]) for line in
                      Path("/proc/thread-self/net/snmp6").read_text().splitlines()
                      if line.startswith("Udp6InCsumErrors"))
    return count
