"""``harp probe``: discover the paths of a network that its operator does not document.

It finds the path of each UDP source port, and round trips that show which hosts are near.
"""

from __future__ import annotations

import re
import socket
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harp.cli.io import STDOUT, check_target, write_text
from harp.cli.options import Number

if TYPE_CHECKING:
    from harp.net.traceroute import Trace

PORTS = "61256-61287"
"""32 ports: they cover all of four paths with probability 99.96 %, of eight with 89 %."""


def _parse_ports(_: click.Context, __: click.Parameter, text: str) -> list[int]:
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    first, last = (int(end) for end in found.groups()) if found else (0, 0)
    if not 1 <= first <= last <= 65535:
        raise click.BadParameter(f"{text!r} is not a range of UDP ports, like {PORTS}")
    return list(range(first, last + 1))


def _require_ipv4(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    wrong = next((text for text in texts if not _is_ipv4(text)), None)
    if wrong is not None:
        raise click.BadParameter(f"{wrong!r} is not an IPv4 address, like 10.0.0.2")
    return texts


def _is_ipv4(text: str) -> bool:
    try:
        IPv4Address(text)
    except AddressValueError:
        return False
    return True


@click.command()
@click.argument("targets", metavar="TARGET...", nargs=-1, callback=_require_ipv4)
@click.option("--port", default=61000, show_default=True, type=click.IntRange(1, 65535),
              help="UDP port that the targets' ranks will listen on.")
@click.option("--ports", default=PORTS, show_default=True, callback=_parse_ports,
              help="Source ports to probe.")
@click.option("--source", metavar="ADDRESS", help="Source address.  [the route's]")
@click.option("--seconds", default=10.0, show_default=True, type=Number(0.5, 600),
              help="Longest time per target.")
@click.option("--latency", is_flag=True,
              help="Measure round trips instead, by TCP connects to --port; harp plan orders ranks "
              "by them.")
@click.option("--fingerprint", is_flag=True,
              help="Group ports into paths by delays that rise together while another job sends; "
              "for networks where no router answers.")
@click.option("--most-bps", default=1e6, show_default=True, type=Number(1e4, 1e12),
              help="Bits per second that --fingerprint sends; 1e6 is 1 % of a 100 Mb/s link.")
@click.option("--answer", metavar="ADDRESS", help="Answer another host's --fingerprint, at --port.")
@click.option("--plan", metavar="PLAN", type=click.Path(path_type=Path),
              help="Check that this host's flows pass the switches that a plan lists. Run before "
              "the job, which uses the same ports.")
@click.option("-o", "--output", metavar="FILE", help="File to write; standard output by default.")
def probe(targets: tuple[str, ...], port: int, ports: list[int], *, source: str | None,
          seconds: float, latency: bool, fingerprint: bool, most_bps: float, answer: str | None,
          plan: Path | None, output: str | None) -> None:
    """Find the routers that a UDP flow passes, for each source port.

    Sends a few hundred packets per target, whose TTL expires on the way. Needs no privileges.

    \b
    harp probe 10.0.0.2 10.0.0.3 -o map.json
    harp probe --latency 10.0.0.2 10.0.0.3 -o latency.json
    harp probe --answer 10.0.0.2                   # on 10.0.0.2; then, here:
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
        _answer_probes(answer, port)
        return
    output = output or STDOUT
    check_target(output)
    if latency:
        text = _measure_latency(targets, port, source)
    elif fingerprint:
        text = _group_ports(targets, port, ports, source, seconds, most_bps)
    else:
        text = _trace_paths(targets, port, ports, source, seconds)
    write_text(output, text)


def _measure_latency(targets: tuple[str, ...], port: int, source: str | None) -> str:
    """Measure round trips to the targets, for a file of `harp.routing.rtt_clusters`."""
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
                   f"{target}: no answer; does a firewall drop TCP to port {port}?", err=True)
    if not found:
        raise click.ClickException("nothing was measured: no target answers")
    return rtt_clusters.to_json(own, found)


def _answer_probes(address: str, port: int) -> None:
    from harp.net.oneway import answer

    try:
        answer(address, port)
    except KeyboardInterrupt:
        return
    except OSError as error:
        raise click.ClickException(f"cannot listen on {address}:{port}: "
                                   f"{error.strerror}") from error


def _group_ports(targets: tuple[str, ...], port: int, ports: list[int], source: str | None,
             seconds: float, most_bps: float) -> str:
    """Group ports by path, for a map of `harp.routing.discovered` without routers."""
    import numpy as np

    from harp.net.oneway import measure_delays
    from harp.routing import discovered
    from harp.routing.fingerprint import find_classes

    paths: list[discovered.DiscoveredPath] = []
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
        count, grouped = int(found.label.max(initial=-1)) + 1, int((found.label >= 0).sum())
        click.echo(f"{target}: {grouped} of {len(ports)} source ports map to {count} paths "
                   f"({delays.sent_packets} packets in {delays.taken_s:.1f} s), {found.sure:.0%} "
                   f"sure; {len(ports) - grouped} ports could not be classified", err=True)
        paths += [discovered.DiscoveredPath(
            own, f"{target}:{port}", (None,),
            tuple(ports[at] for at in np.flatnonzero(found.label == number)))
            for number in range(count)]
    if len(paths) < 2:
        raise click.ClickException("nothing was discovered: the delays of no ports rise together, "
                                   "or those of all do. Does another job use these links?")
    return discovered.to_json(paths)


def _trace_paths(targets: tuple[str, ...], port: int, ports: list[int], source: str | None,
           seconds: float) -> str:
    """Trace the paths to the targets, for a map of `harp.routing.discovered`."""
    from harp.net.traceroute import trace
    from harp.routing import discovered

    paths: list[discovered.DiscoveredPath] = []
    for target in targets:
        own = source or _own_address(target)
        try:
            found = trace(own, (target, port), ports, budget_s=seconds)
        except OSError as error:
            raise click.ClickException(f"{target} cannot be probed from {own}: "
                                       f"{error.strerror}") from error
        click.echo(f"{target}: {_describe_trace(found)}", err=True)
        paths += [discovered.DiscoveredPath(own, f"{target}:{port}", routers, tuple(which))
                  for routers, which in found.classes.items()
                  if found.answered and found.alike == 1.0]
    if not paths:
        raise click.ClickException("nothing was discovered: no router on the path answers, or "
                                   "packets of one flow take several paths")
    return discovered.to_json(paths)


def _check_plan(path: Path, seconds: float) -> None:
    """Trace this host's flows, and compare the routers that answer with the plan."""
    from harp.cli.plan.job_files import read_plan
    from harp.net.traceroute import trace
    from harp.routing.deployment import split_address
    from harp.routing.verify import find_mismatch

    plan = read_plan(path)
    if plan.protocol != "udp":
        raise click.ClickException(f"{path} is a plan of {plan.protocol.upper()}, and probes are "
                                   "UDP, which switches hash otherwise: compare it with the job's "
                                   f"files, by harp plan JOB --check {path}")
    own = [flow for flow in plan.flows if _is_own(split_address(flow.source)[0])]
    if not own:
        raise click.ClickException(f"{path}: no flow starts at an address of this host")
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
        routers |= {(f"{source}:{port}", target): path for port, path in found.routers.items()}
    answered = {router for path in routers.values() for router in path if router is not None}
    if not answered:
        raise click.ClickException(f"{path}: cannot be checked: no router on the path answers")
    mismatch = find_mismatch(own, routers)
    if mismatch is not None:
        raise click.ClickException(f"{path} does not match: {mismatch}. "
                                   "Make it again with harp plan")
    click.echo(f"{path} matches as far as this host can see: {len(routers)} of its {len(own)} "
               f"flows pass {len(answered)} routers, each of one switch")


def _is_own(address: str) -> bool:
    """Whether the address is on one of this host's interfaces."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((address, 0))
        except OSError:
            return False
        return True


def _own_address(target: str) -> str:
    """Give the source address that the kernel would use."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((target, 9))
        except OSError as error:
            raise click.ClickException(f"no route to {target}: {error.strerror}") from error
        return str(sock.getsockname()[0])


def _describe_trace(found: Trace) -> str:
    """Describe what a trace found."""
    cost = f"{found.sent_packets} packets in {found.seconds:.1f} s"
    if not found.answered:
        taken = f"; {len(found.taken)} ports are in use" if found.taken else ""
        return f"no router on the path answers ({cost}{taken})"
    if found.alike < 1.0:
        return (f"packets of one flow take several paths ({1 - found.alike:.0%} of those probed "
                "twice): ports do not select paths")
    parts = [f"{len(found.routers)} source ports map to {len(found.classes)} "
             f"path{'s' if len(found.classes) > 1 else ''} ({cost})"]
    if found.unanswered:
        parts.append(f"{len(found.unanswered)} ports without an answer: raise --seconds")
    if found.taken:
        parts.append(f"{len(found.taken)} ports are in use")
    silent = max(path.count(None) for path in found.classes)
    if silent:
        parts.append(f"{silent} routers on the path do not answer")
    return "; ".join(parts)
