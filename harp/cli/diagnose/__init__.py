"""``harp diagnose``: find the host, port, path or rank that slows down a running job.

    snapshot.py            a host's counters, taken several times: a file for `harp diagnose`
    snapshot_exchange.py   the same over a TCP port, for clients that hold the token
    legs.py                each direction of each path, as both of its ends counted it
    symptoms.py            legs and receivers that do badly, with the evidence
    suspects.py            the common cause of the symptoms, with a confidence

Each file uses only those above it. Only the first two touch the host.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harp.cli.io import InputError, check_target, naming_address, read_text, write_text
from harp.cli.options import Number, whole
from harp.reading import read_bytes

if TYPE_CHECKING:
    from harp.cli.diagnose.snapshot import Report
    from harp.cli.diagnose.suspects import Suspect


UNSEEN, SUSPECT = 1, 3
"""Exit codes."""


def _parse_address(text: str, default: str = "") -> tuple[str, int]:
    """Split HOST:PORT or [IPV6]:PORT."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or default
    number = whole(port)
    if not host or number is None or not 1 <= number <= 65535:
        raise click.UsageError(f"{text!r} is neither a file nor HOST:PORT, like node-1:9407")
    return host, number


@click.command()
@click.argument("sources", nargs=-1, metavar="[FILE | HOST:PORT]...")
@click.option("--snapshot", metavar="FILE", help="Write this host's counters to FILE.")
@click.option("--serve", metavar="[ADDRESS:]PORT",
              help="Serve this host's counters to clients that hold the token.")
@click.option("--token-file", metavar="FILE",
              help="File with the token, the same on all hosts; only its owner may read it.")
@click.option("--seconds", type=Number(0.5, 60), default=2.0, show_default=True,
              help="Time over which counters are compared.")
@click.option("--map", "map_file", metavar="FILE",
              help="Map of harp probe, so that routers between the hosts can be named.")
@click.option("--name", metavar="HOST", help="Name of this host.  [its hostname]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--html", "page", metavar="FILE", help="Write the suspects as a page for a browser.")
def diagnose(sources: tuple[str, ...], *, snapshot: str | None, serve: str | None,
             token_file: str | None, seconds: float, map_file: str | None, name: str | None,
             as_json: bool, page: str | None) -> None:
    """Find what slows down or breaks a running job, from the counters of all its hosts.

    \b
    harp diagnose --snapshot node-1.json           on each host, at about the same time; then
    harp diagnose node-1.json node-2.json ...
    harp diagnose --serve 9407 --token-file token  on each host, once; then
    harp diagnose node-1:9407 node-2:9407 ... --token-file token

    Exit code 0 if nothing is suspect, 3 if something is, 1 if no path was found.
    """  # noqa: D301  (click's mark)
    if sum(map(bool, (sources, snapshot, serve))) != 1:
        raise click.UsageError("give one of these: files or hosts to diagnose, --snapshot FILE, "
                               "--serve PORT")
    if page:
        if not sources:
            raise click.UsageError("--html needs files or hosts to diagnose")
        check_target(page, (".html", ".htm"), stdout=False)
    own = name or socket.gethostname()
    if serve:
        _serve(serve, _token(token_file), own)
    elif snapshot:
        _write_snapshot(snapshot, own, seconds)
    else:
        reports, missing = _collect_reports(sources, token_file, seconds)
        click.get_current_context().exit(_print_suspects(reports, missing, map_file, page,
                                                         as_json=as_json))


def _token(token_file: str | None) -> bytes:
    from harp.cli.diagnose.snapshot_exchange import ExchangeError, read_token

    if token_file is None:
        raise click.UsageError("the network needs a token: --token-file FILE")
    try:
        return read_token(Path(token_file))
    except ExchangeError as error:
        raise click.UsageError(str(error)) from error


def _serve(serve: str, token: bytes, own: str) -> None:
    from harp.cli.diagnose.snapshot_exchange import SnapshotServer

    address, port = _parse_address(serve if ":" in serve else f":{serve}", default="0.0.0.0")
    with naming_address(address, port):
        server = SnapshotServer(address, port, token, own)
    with server:
        click.echo(f"{own} serves on port {port}")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


def _write_snapshot(file: str, own: str, seconds: float) -> None:
    from harp.cli.diagnose.snapshot import take_report, to_json

    check_target(file)
    write_text(file, to_json(take_report(own, seconds)) + "\n", mode=0o600)


def _collect_reports(sources: tuple[str, ...], token_file: str | None,
             seconds: float) -> tuple[list[Report], list[str]]:
    """Collect the reports, and a sentence for each source that gave none."""
    from harp.cli.diagnose.snapshot import MOMENTS
    from harp.cli.diagnose.snapshot_exchange import ask_all

    files = [source for source in sources if os.path.exists(source)]  # noqa: PTH110 - never raises
    hosts = [_parse_address(source) for source in sources if source not in files]
    read = [_read_file(file) for file in files]
    reports = [each for each in read if not isinstance(each, str)]
    missing = [each for each in read if isinstance(each, str)]
    if hosts:
        found, gone = ask_all(hosts, _token(token_file), seconds, MOMENTS)
        reports, missing = reports + found, missing + gone
    twice = {report.host for report in reports
             if sum(other.host == report.host for other in reports) > 1}
    if twice:
        raise click.UsageError(f"two reports are of host {min(twice)}: give each host its own name "
                               "by --name")
    if not reports:
        kind = click.ClickException if hosts else InputError
        raise kind("; ".join(missing))
    return reports, missing


def _read_file(file: str) -> Report | str:
    """Read a report, or give a sentence that says why it cannot be read."""
    from harp.cli.diagnose.snapshot import SnapshotError, from_json

    try:
        return from_json(read_bytes(file))
    except OSError as error:
        return f"{file} cannot be read: {error.strerror}"
    except SnapshotError as error:
        return f"{file}: {error}"


def _print_suspects(reports: list[Report], missing: list[str], map_file: str | None,
                    page: str | None, *, as_json: bool) -> int:
    """Print the suspects, and give the exit code."""
    from harp.cli.diagnose.legs import picture_of
    from harp.cli.diagnose.suspects import find_suspects

    suspects = find_suspects(reports, _routers(map_file) if map_file else None)
    legs = len(picture_of(reports).legs)
    if page:
        from harp.cli.diagnose.suspects_page import diagnose_html

        hosts = [report.host for report in reports]
        says = _format_suspects([], len(reports), legs) if not suspects else ""
        command = shlex.join(["harp", *sys.argv[1:]])
        write_text(page, diagnose_html(suspects, says, hosts, missing, command))
    if as_json:
        click.echo(json.dumps({"hosts": [report.host for report in reports], "missing": missing,
                               "legs": legs,
                               "suspects": [suspect.document() for suspect in suspects]},
                              indent=2, ensure_ascii=False))
    else:
        for line in missing:
            click.echo(f"no report: {line}", err=True)
        click.echo(_format_suspects(suspects, len(reports), legs))
    if suspects:
        return SUSPECT
    return 0 if legs else UNSEEN


def _format_suspects(suspects: list[Suspect], hosts: int, legs: int) -> str:
    lines = [f"{hosts} host{'s' * (hosts != 1)}, {legs} directions of paths"]
    for suspect in suspects:
        lines.append(suspect.sentence)
        lines += [f"    {text}" for text in suspect.evidence]
    if not suspects:
        lines.append("nothing is suspect" if legs else
                     "no path of a running job was found: do its engines belong to this user, and "
                     "does it use a transport other than kernel TCP?")
    return "\n".join(lines)


def _routers(map_file: str) -> dict[tuple[str, str], tuple[str, ...]]:
    """Give the routers that harp probe found, by source and target with UDP ports."""
    from harp.routing.discovered import from_json
    from harp.routing.path_plan import PlanError

    try:
        paths = from_json(read_text(Path(map_file)))
    except PlanError as error:
        raise click.UsageError(f"{map_file}: {error}") from error
    return {(f"{path.source}:{port}", path.target):
            tuple(router for router in path.routers if router is not None)
            for path in paths for port in path.ports}
