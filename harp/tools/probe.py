"""``harp probe``: what nobody tells of a network.

Which way each UDP source port takes, and which hosts are near one another.
"""

from __future__ import annotations

import re
import socket
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from harp.net.trace import Trace

PORTS = "61256-61287"
"""As many as find each of four ways with a chance of 99.96 %, of eight with 89 %."""


def _ports(_: click.Context, __: click.Parameter, text: str) -> list[int]:
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    first, last = (int(end) for end in found.groups()) if found else (0, 0)
    if not 1 <= first <= last <= 65535:
        raise click.BadParameter(f"{text!r} is no range of UDP ports, as {PORTS}")
    return list(range(first, last + 1))


def _addresses(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    wrong = next((text for text in texts if not _is_ipv4(text)), None)
    if wrong is not None:
        raise click.BadParameter(f"{wrong!r} is no IPv4 address, as 10.0.0.2")
    return texts


def _is_ipv4(text: str) -> bool:
    try:
        IPv4Address(text)
    except AddressValueError:
        return False
    return True


@click.command()
@click.argument("targets", metavar="TARGET...", nargs=-1, required=True, callback=_addresses)
@click.option("--port", default=61000, show_default=True, type=click.IntRange(1, 65535),
              help="UDP port of the targets, where their ranks will listen.")
@click.option("--ports", default=PORTS, show_default=True, callback=_ports,
              help="Source ports to learn about.")
@click.option("--source", metavar="ADDRESS", help="Own address; that of the route by default.")
@click.option("--seconds", default=10.0, show_default=True, type=click.FloatRange(0.5, 600),
              help="For each target at most.")
@click.option("--latency", is_flag=True,
              help="Measure round trips instead (TCP connects to --port), for the order of ranks.")
@click.option("-o", "--output", metavar="FILE", help="Write the map here.")
def probe(targets: tuple[str, ...], port: int, ports: list[int], *, source: str | None,
          seconds: float, latency: bool, output: str | None) -> None:
    """Find which routers a UDP flow passes by each source port.

    Sends packets whose TTL ends on the way, a few hundred a target, and needs no rights.

    \b
    harp probe 10.0.0.2 10.0.0.3 -o map.json
    harp probe --latency 10.0.0.2 10.0.0.3 -o latency.json
    """  # noqa: D301  (click's mark)
    text = _measure(targets, port, source) if latency else _trace(targets, port, ports, source,
                                                                  seconds)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        Path(output).write_text(text, "utf-8")
    except OSError as error:
        raise click.ClickException(f"{output} cannot be written: {error.strerror}") from error


def _measure(targets: tuple[str, ...], port: int, source: str | None) -> str:
    """Round trips to the targets, as a file of `harp.routing.nearness`."""
    from harp.net.latency import least_round_trip_s
    from harp.routing import nearness

    own = source or _own_address(targets[0])
    found: dict[str, float] = {}
    for target in targets:
        try:
            taken_s = least_round_trip_s(own, (target, port))
        except OSError as error:
            raise click.ClickException(f"{target} cannot be reached from {own}: "
                                       f"{error.strerror}") from error
        if taken_s is None:
            click.echo(f"{target}: no answer; a firewall drops TCP to port {port}?", err=True)
        else:
            click.echo(f"{target}: {taken_s * 1e6:.1f} us", err=True)
            found[target] = taken_s
    if not found:
        raise click.ClickException("nothing was measured: no target answers")
    return nearness.to_json(own, found)


def _trace(targets: tuple[str, ...], port: int, ports: list[int], source: str | None,
           seconds: float) -> str:
    """Ways to the targets, as a map of `harp.routing.learnt`."""
    from harp.net.trace import trace
    from harp.routing import learnt

    ways: list[learnt.Way] = []
    for target in targets:
        own = source or _own_address(target)
        try:
            found = trace(own, (target, port), ports, budget_s=seconds)
        except OSError as error:
            raise click.ClickException(f"{target} cannot be probed from {own}: "
                                       f"{error.strerror}") from error
        click.echo(f"{target}: {_sentence(found)}", err=True)
        ways += [learnt.Way(own, f"{target}:{port}", routers, tuple(which))
                 for routers, which in found.classes.items() if routers and found.alike == 1.0]
    if not ways:
        raise click.ClickException("nothing was learnt: no router on the way answers, or packets "
                                   "of one flow take several ways")
    return learnt.to_json(ways)


def _own_address(target: str) -> str:
    """Give the address by which the kernel would send there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((target, 9))
        except OSError as error:
            raise click.ClickException(f"there is no way to {target}: {error.strerror}") from error
        return str(sock.getsockname()[0])


def _sentence(found: Trace) -> str:
    """What was learnt, and how sure that is."""
    cost = f"{found.sent_packets} packets in {found.seconds:.1f} s"
    if not found.routers or not any(found.classes):
        taken = f"; {len(found.taken)} ports are others'" if found.taken else ""
        return f"no router on the way answers ({cost}{taken})"
    if found.alike < 1.0:
        return (f"packets of one flow take several ways ({1 - found.alike:.0%} of those asked twice"
                "): no port has a way of its own")
    parts = [f"{len(found.classes)} way{'s' if len(found.classes) > 1 else ''} by "
             f"{len(found.routers)} source ports ({cost})"]
    if found.unanswered:
        parts.append(f"{len(found.unanswered)} ports without an answer: more --seconds")
    if found.taken:
        parts.append(f"{len(found.taken)} ports are others'")
    silent = max(way.count(None) for way in found.classes)
    if silent:
        parts.append(f"{silent} of the routers on the way are silent")
    return "; ".join(parts)
