"""Legs: each direction of each path, as counted by both of its ends.

    sender's row:  how many packets it sent, what it gave up, whether the path lives
    receiver's:    up to which number packets came (`due`), and how many of them (`arrived`)

Packets of a path are numbered, so the receiver alone knows the share that was lost on the way to
it: no clocks are compared, and lost ACKs do not count. Both together say what a sender's
dead path means: where its probes arrive, answers are lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_interface
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from harp.cli.diagnose.snapshot import ip_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from harp.cli.diagnose.snapshot import EngineRow, Interface, PathRow, Report


TOLD_LEAST = 3
"""Packets between two samples that suffice to say whether any arrive."""


class Port(NamedTuple):
    """A host's address."""

    host: str
    ip: str


@dataclass
class Leg:
    """One direction of a path, from the first sample to the last."""

    source: Port
    target: Port
    key: tuple[int, int, int]
    """Connection at the sender and at the receiver, number of the path."""
    addresses: tuple[str, str]
    """Addresses of both ends, with UDP ports."""
    connection: tuple[str, str, int] | None = None
    """The sender's: host, engine, id."""
    seconds: float = 0.0
    sent_each: list[int] = field(default_factory=list)
    """Packets, by the sender, from each look to the next."""
    given_up_each: list[int] = field(default_factory=list)
    frame_bytes: int = 0
    """Largest packet, in all of its fragments."""
    alive: bool = True
    died: int = 0
    """Times."""
    narrow: int = 0
    """UDP payload of a frame, where a whole chunk does not pass in one; 0: it does."""
    fullness: float = 0.0
    """Mean of what was in flight by what the window allows."""
    round_trip_ns: float = 0.0
    """Mean of it, smoothed, without what the far host took."""
    received: bool = False
    """Whether the receiver reported it too:"""
    due_each: list[int] = field(default_factory=list)
    """Packets that were sent up to the last that came."""
    arrived_each: list[int] = field(default_factory=list)
    bad: int = 0
    """Payloads with a wrong CRC."""

    @property
    def sent(self) -> int:
        """Packets, by the sender."""
        return sum(self.sent_each)

    @property
    def due(self) -> int:
        """Counted by the receiver."""
        return sum(self.due_each)

    @property
    def delivered_each(self) -> list[int]:
        """Packets that arrived, as counted by the receiver if it reported."""
        if self.received:
            return self.arrived_each
        return [max(0, sent - lost) for sent, lost in
                zip(self.sent_each, self.given_up_each, strict=True)]

    @property
    def rate_bps(self) -> float:
        """The delivered rate."""
        return (sum(self.delivered_each) * self.frame_bytes * 8 / self.seconds if self.seconds
                else 0.0)

    @property
    def losses_each(self) -> list[tuple[int, int]]:
        """Packets that were sent, and of these lost, from each look to the next."""
        if self.received:
            return [(due, due - came) for due, came in
                    zip(self.due_each, self.arrived_each, strict=True)]
        return list(zip(self.sent_each, self.given_up_each, strict=True))

    @property
    def is_silent(self) -> bool | None:
        """Whether hardly any of the last packets arrived; None if unknown."""
        if not self.received or not self.sent_each or self.sent_each[-1] < TOLD_LEAST:
            return None
        return 2 * self.arrived_each[-1] < self.sent_each[-1]


@dataclass
class Picture:
    """The reports of all hosts, joined."""

    legs: list[Leg]
    hosts: list[str]
    """Hosts that sent a report."""
    unheard: list[str]
    """Peers that did not, by their first address."""
    interface_of: dict[Port, Interface]
    by_key: dict[tuple[int, int, int], Leg] = field(default_factory=dict)
    network_of: dict[str, str] = field(default_factory=dict)
    """Keyed by address."""
    router_of: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    """Routers on a leg's path by its addresses, if a map was given."""

    def name(self, port: Port) -> str:
        """A port as people know it."""
        found = self.interface_of.get(port)
        return (f"port {found.name} ({port.ip}) of {port.host}" if found else
                f"port {port.ip} of {port.host}")

    def reverse(self, leg: Leg) -> Leg | None:
        """The other direction of its path."""
        here, there, path = leg.key
        return self.by_key.get((there, here, path))


def picture_of(reports: Sequence[Report]) -> Picture:
    """Join what hosts say."""
    host_of = {ip_of(row.local): report.host for report in reports for _, row in _rows(report)}
    unheard = _name_unheard(reports, host_of)
    legs: dict[tuple[int, int, int], Leg] = {}

    def leg_of(source: str, target: str, key: tuple[int, int, int]) -> Leg:
        near, far = (Port(host_of[ip_of(end)], ip_of(end)) for end in (source, target))
        return legs.setdefault(key, Leg(near, far, key, (source, target)))

    for report in reports:
        for engine, row in _rows(report):
            history = _history(report, engine, row)
            here, number = row.connection, row.number
            there = next((each.peer_id for each in engine.connections if each.id == here), 0)
            if len(history) > 1 and there:
                _add_sender(leg_of(row.local, row.remote, (here, there, number)), report, engine,
                            history)
                _add_receiver(leg_of(row.remote, row.local, (there, here, number)), history)
    picture = Picture(list(legs.values()), [report.host for report in reports], unheard, {},
                      by_key=legs)
    for report in reports:
        _add_interfaces(picture, report)
    return picture


def _rows(report: Report) -> Iterator[tuple[EngineRow, PathRow]]:
    """The paths of a host at the last look, of the engines that live; mem ports have none."""
    for engine in report.moments[-1].engines:
        if engine.alive:
            for row in engine.paths:
                if not row.remote.startswith("mem:"):
                    yield engine, row


def _name_unheard(reports: Sequence[Report], host_of: dict[str, str]) -> list[str]:
    """Addresses of no report: those of one connection are one host's."""
    names: list[str] = []
    for report in reports:
        groups: dict[tuple[str, int], list[str]] = {}
        for engine, row in _rows(report):
            groups.setdefault((engine.file, row.connection), []).append(ip_of(row.remote))
        for ips in groups.values():
            known = [host_of[ip] for ip in ips if ip in host_of]
            name = known[0] if known else f"the host of {min(ips)}"
            names += [] if known else [name]
            for ip in ips:
                host_of.setdefault(ip, name)
    return names


def _history(report: Report, engine: EngineRow, row: PathRow) -> list[PathRow]:
    """The same path at all looks."""
    return [then for moment in report.moments for other in moment.engines
            if other.file == engine.file for then in other.paths
            if (then.connection, then.number, then.local, then.remote)
            == (row.connection, row.number, row.local, row.remote)]


def _growth(counts: Iterable[int]) -> list[int]:
    """Differences between samples; counts in an edited file may fall."""
    return [max(0, later - sooner) for sooner, later in pairwise(counts)]


def _add_sender(leg: Leg, report: Report, engine: EngineRow, history: list[PathRow]) -> None:
    first, last = history[0], history[-1]
    leg.connection = (report.host, engine.file, last.connection)
    leg.seconds = report.seconds
    leg.sent_each = _growth(row.sent for row in history)
    leg.given_up_each = _growth(row.lost + row.spurious for row in history)
    leg.frame_bytes = last.frame_bytes * max(1, last.fragments)
    leg.alive, leg.died = bool(last.alive), last.died - first.died
    leg.narrow = last.frame_bytes if last.fragments > 1 or last.mtu_fails else 0
    leg.fullness = sum(row.bytes_in_flight / max(1, row.window_bytes)
                       for row in history) / len(history)
    leg.round_trip_ns = sum(row.smoothed_ns for row in history) / len(history)


def _add_receiver(leg: Leg, history: list[PathRow]) -> None:
    leg.received = True
    leg.due_each = _growth(row.due for row in history)
    leg.arrived_each = _growth(row.arrived for row in history)
    leg.bad = history[-1].bad_payloads - history[0].bad_payloads


def _add_interfaces(picture: Picture, report: Report) -> None:
    """From the oldest sample to the newest, so that vanished objects keep their names."""
    for moment in report.moments:
        for interface in moment.interfaces:
            for text in interface.addresses:
                address = ip_interface(text)
                picture.interface_of[Port(report.host, str(address.ip))] = interface
                picture.network_of[str(address.ip)] = str(address.network)
