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

from harp.cli.io import STDOUT, check_target, write_text

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
@click.argument("targets", metavar="TARGET...", nargs=-1, callback=_addresses)
@click.option("--port", default=61000, show_default=True, type=click.IntRange(1, 65535),
              help="UDP port of the targets, where their ranks will listen.")
@click.option("--ports", default=PORTS, show_default=True, callback=_ports,
              help="Source ports to learn about.")
@click.option("--source", metavar="ADDRESS", help="Own address; that of the route by default.")
@click.option("--seconds", default=10.0, show_default=True, type=click.FloatRange(0.5, 600),
              help="For each target at most.")
@click.option("--latency", is_flag=True,
              help="Measure round trips instead (TCP connects to --port), for the order of ranks.")
@click.option("--fingerprint", is_flag=True,
              help="Where no router answers: which ports share a way, by delays that rise together "
              "while another job sends.")
@click.option("--most-bps", default=1e6, show_default=True, type=click.FloatRange(1e4, 1e12),
              help="Bits a second that --fingerprint sends: 1 % of a link of 100 Mb/s.")
@click.option("--answer", metavar="ADDRESS", help="Answer --fingerprint of others, at --port.")
@click.option("--plan", metavar="PLAN", type=click.Path(path_type=Path),
              help="Say whether this host's flows of a plan pass the switches that it has for "
              "them; before the job starts, whose ports these are.")
@click.option("-o", "--output", metavar="FILE", help="Write the map here.")
def probe(targets: tuple[str, ...], port: int, ports: list[int], *, source: str | None,
          seconds: float, latency: bool, fingerprint: bool, most_bps: float, answer: str | None,
          plan: Path | None, output: str | None) -> None:
    """Find which routers a UDP flow passes by each source port.

    Sends packets whose TTL ends on the way, a few hundred a target, and needs no rights.

    \b
    harp probe 10.0.0.2 10.0.0.3 -o map.json
    harp probe --latency 10.0.0.2 10.0.0.3 -o latency.json
    harp probe --answer 10.0.0.2                   # there, and here
    harp probe --fingerprint 10.0.0.2 -o map.json
    harp probe --plan plan.json
    """  # noqa: D301  (click's mark)
    alone = bool(answer) + (plan is not None)
    if latency + fingerprint + alone > 1 or bool(alone) == bool(targets):
        raise click.UsageError("give targets to probe, with --latency or --fingerprint or neither; "
                               "or --answer ADDRESS or --plan PLAN alone")
    if plan is not None:
        _check_plan(plan, seconds)
        return
    if answer:
        _answer(answer, port)
        return
    output = output or STDOUT
    check_target(output)
    if latency:
        text = _measure(targets, port, source)
    elif fingerprint:
        text = _compare(targets, port, ports, source, seconds, most_bps)
    else:
        text = _trace(targets, port, ports, source, seconds)
    write_text(output, text)


def _measure(targets: tuple[str, ...], port: int, source: str | None) -> str:
    """Round trips to the targets, as a file of `harp.routing.rtt_clusters`."""
    from harp.net.latency import least_round_trips_s
    from harp.routing import rtt_clusters

    own = source or _own_address(targets[0])
    try:
        least_s = least_round_trips_s(own, [(target, port) for target in targets])
    except OSError as error:
        raise click.ClickException(f"{error.filename or targets[0]} cannot be reached from {own}: "
                                   f"{error.strerror}") from error
    found = {target: taken_s for (target, _), taken_s in least_s.items()}
    for target in targets:
        click.echo(f"{target}: {found[target] * 1e6:.1f} us" if target in found else
                   f"{target}: no answer; a firewall drops TCP to port {port}?", err=True)
    if not found:
        raise click.ClickException("nothing was measured: no target answers")
    return rtt_clusters.to_json(own, found)


def _answer(address: str, port: int) -> None:
    from harp.net.oneway import answer

    try:
        answer(address, port)
    except KeyboardInterrupt:
        return
    except OSError as error:
        raise click.ClickException(f"{address}:{port} cannot be had: {error.strerror}") from error


def _compare(targets: tuple[str, ...], port: int, ports: list[int], source: str | None,
             seconds: float, most_bps: float) -> str:
    """Ports that share a way, as a map of `harp.routing.discovered` whose routers are unknown."""
    import numpy as np

    from harp.net.oneway import measure_delays
    from harp.routing import discovered
    from harp.routing.fingerprint import find_classes

    ways: list[discovered.Way] = []
    for target in targets:
        own = source or _own_address(target)
        try:
            delays = measure_delays(own, (target, port), ports, seconds=seconds, most_bps=most_bps)
        except OSError as error:
            raise click.ClickException(f"{target} cannot be probed from {own}: "
                                       f"{error.strerror}") from error
        if np.isnan(delays.seconds).all():
            raise click.ClickException(f"{target} does not answer at UDP port {port}: is `harp "
                                       "probe --answer` running there?")
        found = find_classes(delays.seconds)
        count, told = int(found.label.max(initial=-1)) + 1, int((found.label >= 0).sum())
        click.echo(f"{target}: {count} ways by {told} source ports ({delays.sent_packets} packets "
                   f"in {delays.taken_s:.1f} s), {found.sure:.0%} sure; {len(ports) - told} ports "
                   "are like no other", err=True)
        ways += [discovered.Way(own, f"{target}:{port}", (None,),
                            tuple(ports[at] for at in np.flatnonzero(found.label == number)))
                 for number in range(count)]
    if len(ways) < 2:
        raise click.ClickException("nothing was discovered: delays of no ports rise together, or "
                                   "those of all do. Is another job on the network's links?")
    return discovered.to_json(ways)


def _trace(targets: tuple[str, ...], port: int, ports: list[int], source: str | None,
           seconds: float) -> str:
    """Ways to the targets, as a map of `harp.routing.discovered`."""
    from harp.net.trace import trace
    from harp.routing import discovered

    ways: list[discovered.Way] = []
    for target in targets:
        own = source or _own_address(target)
        try:
            found = trace(own, (target, port), ports, budget_s=seconds)
        except OSError as error:
            raise click.ClickException(f"{target} cannot be probed from {own}: "
                                       f"{error.strerror}") from error
        click.echo(f"{target}: {_sentence(found)}", err=True)
        ways += [discovered.Way(own, f"{target}:{port}", routers, tuple(which))
                 for routers, which in found.classes.items() if routers and found.alike == 1.0]
    if not ways:
        raise click.ClickException("nothing was discovered: no router on the way answers, or "
                                   "packets of one flow take several ways")
    return discovered.to_json(ways)


def _check_plan(path: Path, seconds: float) -> None:
    """Trace the flows that leave from this host, and compare the routers with the plan's."""
    from harp.cli.plan.job_files import read_plan
    from harp.net.trace import trace
    from harp.routing.deployment import split_address
    from harp.routing.verify import find_mismatch

    own = [flow for flow in read_plan(path).flows if _is_own(split_address(flow.source)[0])]
    if not own:
        raise click.ClickException(f"{path}: no flow leaves from an address of this host")
    ports: dict[tuple[str, str], list[int]] = {}
    for flow in own:
        source, port = split_address(flow.source)
        ports.setdefault((source, flow.target), []).append(port)
    routers: dict[tuple[str, str], tuple[str | None, ...]] = {}
    for (source, target), some in ports.items():
        try:
            found = trace(source, split_address(target), sorted(set(some)), budget_s=seconds)
        except OSError as error:
            raise click.ClickException(f"{target} cannot be probed from {source}: "
                                       f"{error.strerror}") from error
        routers |= {(f"{source}:{port}", target): way for port, way in found.routers.items()}
    told = {router for way in routers.values() for router in way if router is not None}
    if not told:
        raise click.ClickException(f"{path}: no router on the way answers, so nobody can say")
    mismatch = find_mismatch(own, routers)
    if mismatch is not None:
        raise click.ClickException(f"{path} does not hold: {mismatch}. Make it anew with harp plan")
    click.echo(f"{path} holds as far as this host sees: {len(routers)} of its {len(own)} flows pass"
               f" {len(told)} routers, none of which stands for two switches")


def _is_own(address: str) -> bool:
    """Whether this host has the address, on whichever interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((address, 0))
        except OSError:
            return False
        return True


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
