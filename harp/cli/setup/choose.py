"""The interfaces that ``harp setup`` changes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from harp.cli.setup.host_access import Refused
from harp.nearest import nearest_name

if TYPE_CHECKING:
    from harp.cli.setup.host_access import Host
    from harp.net.nics import Nic

MOST = 512


def named(host: Host, text: str) -> list[Nic]:
    """Give the interfaces of a list with ranges: ``eth1..eth4,eth6``."""
    there = {nic.name: nic for nic in host.nics()}
    found: dict[str, Nic] = {}
    for item in text.split(","):
        for name in _range(item.strip()):
            if name not in there:
                nearest = nearest_name(name, there, 0)
                raise click.BadParameter(f'there is no NIC "{name}" here; ' + (
                    f"the nearest name is {nearest}, all are {', '.join(sorted(there))}"
                    if nearest else "there is no NIC at all"))
            found[name] = there[name]
    return list(found.values())


def _range(item: str) -> list[str]:
    first, dots, last = item.partition("..")
    if not first:
        raise click.BadParameter(f'"{item}" is not a name; write eth1,eth2 or eth1..eth8')
    if not dots:
        return [first]
    ends = [re.fullmatch(r"(.*?)(\d+)", end) for end in (first, last)]
    if not ends[0] or not ends[1] or ends[0][1] != ends[1][1] \
            or not 0 <= int(ends[1][2]) - int(ends[0][2]) < MOST:
        raise click.BadParameter(f'"{item}" is not a range; the two names differ only in a rising '
                                 "last number, like eth1..eth8")
    return [f"{ends[0][1]}{number}" for number in range(int(ends[0][2]), int(ends[1][2]) + 1)]


def default(host: Host) -> tuple[list[Nic], list[Nic], str]:
    """Give the cards that are set up by default, those that may be named, and why they have to be.

    They are up, have an address, and do not carry the default route, so that a remote user does
    not lose the connection. A bond counts as one, not its members.
    """
    carriers = _default_route(host)
    cards, able, others = [], [], []
    for nic in host.nics():
        system = f"/sys/class/net/{nic.name}"
        if host.find(f"{system}/master") or not (host.find(f"{system}/device")
                                                 or host.find(f"{system}/bonding")):
            continue
        if nic.name in carriers:
            able.append(nic)
            others.append(f"{nic.name} carries the default route")
        elif not nic.up:
            others.append(f"{nic.name} is down or without carrier")
        elif not host.has_address(nic.name):
            others.append(f"{nic.name} has no address")
        else:
            cards.append(nic)
    return cards, able, ", ".join(others) or "there is no card"


def _default_route(host: Host) -> set[str]:
    """Interfaces of the default routes with the lowest metric."""
    if not host.has("ip"):
        raise click.ClickException("finding the default route's NIC needs ip: "
                                   f"{PACKAGES['ip']}, or name the NICs by --nics")
    carriers: set[str] = set()
    for family in ("-4", "-6"):
        try:
            text = host.run(["ip", family, "route", "show", "default"])
        except Refused:  # a kernel without IPv6
            continue
        routes = re.findall(r"^default.*(?:\n\s.*)*", text, re.MULTILINE)
        metrics = [int((re.search(r"metric (\d+)", route) or [0, 0])[1]) for route in routes]
        for route, metric in zip(routes, metrics, strict=True):
            if metric == min(metrics):
                carriers |= set(re.findall(r"\bdev (\S+)", route))
    return carriers | {member for name in carriers for member in members(host, name)}


def members(host: Host, name: str) -> list[str]:
    """Give the cards of a bond; of a card, itself."""
    return (host.read(f"/sys/class/net/{name}/bonding/slaves") or name).split()


PACKAGES = {"ip": "apt-get install iproute2 (Debian, Ubuntu) or dnf install iproute (RPM)",
            "ethtool": "apt-get install ethtool (Debian, Ubuntu) or dnf install ethtool (RPM)"}
