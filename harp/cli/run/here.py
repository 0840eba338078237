"""Find the hosts of a job that are this one, and the address at which the others reach it.

A host is this one if its name resolves to an address that this host has, of either family. It then
needs no ssh. A name with a user, as ssh takes it, is always another host's.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from functools import cache

import click

from harp.net import nics

LOOPBACK = "127.0.0.1"
DISCARD = 9
"""The UDP port of RFC 863; nothing is sent to it."""


@cache
def is_here(host: str) -> bool:
    """Whether a name or an address is this host's; an unknown name is not."""
    return any(map(nics.is_own_address, addresses_of(host)))


def is_loopback(host: str) -> bool:
    """Whether a name or an address leads other hosts to themselves."""
    found = [one.partition("%")[0] for one in addresses_of(host)]
    return any(ipaddress.ip_address(one).is_loopback for one in found)


def own_address(host: str) -> str:
    """Give this host's source address for packets to ``host``."""
    found = addresses_of(host.rpartition("@")[2])
    if not found:
        raise click.UsageError(f"-H: unknown host {host!r}; --address gives the address of this "
                               "host that the others can reach")
    for address in found:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as asking, contextlib.suppress(OSError):
            asking.connect((address, DISCARD))  # sends nothing; the kernel chooses the route
            return str(asking.getsockname()[0])
    raise click.UsageError(f"-H: no route leads to {host}, {' or '.join(found)}; --address gives "
                           "the address of this host that the others can reach")


def free_port() -> int:
    """Find a TCP port that is free now, in both families where this host has both."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    with socket.create_server(("", 0), family=family, dualstack_ipv6=dual) as free:
        return int(free.getsockname()[1])


def addresses_of(host: str) -> list[str]:
    """Give the addresses of a name, or the address itself; none for an unknown name."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(where[0]) for *_, where in found))
