"""``harp perf``: measure messages between two hosts, or on one host.

The table has one row per size, like nccl-tests. *time* is the time per message while others are in
flight, *algbw* the payload rate in one direction. *p50* and *p99* are half the round trip of single
messages. *CPU* is the CPU time of both ends' threads per byte. *lost* counts packets of this end
that did not arrive; spurious retransmissions are not counted. With ``--tcp`` each row also has the
same messages over kernel TCP between the same hosts, measured in turn. ``--advise`` measures each
port that both hosts have, and writes the fastest into the file of settings.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import signal
import socket
import sys
import threading
from dataclasses import asdict, dataclass, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from harp.cli import conf
from harp.cli.io import STDOUT, check_target, hex_bytes, write_text
from harp.cli.options import Number, whole
from harp.cli.perf import advise
from harp.cli.perf.control_channel import Channel, Gone, Lines, Messages, RemoteError
from harp.cli.perf.ends import (
    FRAMES,
    SOCKETS_MAX,
    Asked,
    Client,
    Run,
    TcpClient,
    card_of,
    client,
    serve,
)
from harp.net import Engine, Port
from harp.net.handle import Handle

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CONTROL_PORT = 18700
UNDER_WAY_BYTES = 16 << 20
"""Most payload in flight; at least two messages are always in flight."""
FEWEST, PINGS_MOST, MESSAGES_MOST = 4, 100_000, 10_000_000


@dataclass(frozen=True)
class Speed:
    """Measured speed of HARP or kernel TCP for messages of one size."""

    messages: int
    time_us: float
    algbw_gbytes: float
    p50_us: float
    p99_us: float
    cpu_ns_per_byte: float


@dataclass(frozen=True)
class Row(Speed):
    """The measurements of one size."""

    size: int
    lost: int
    again: int
    """Retransmissions, of lost packets and of late ones."""
    frames: int
    tcp: Speed | None = None
    """The same over kernel TCP, with ``--tcp``."""


def parse_sizes(text: str) -> list[int]:
    """Read ``8:64MiB:8`` (from, to, factor) or one size."""
    parts = text.split(":")
    if len(parts) not in {1, 3}:
        raise click.UsageError(f"--sizes {text}: FROM:TO:FACTOR or one size, as in 8:64MiB:8")
    first, last, factor = [_bytes(text, part) for part in (parts * 3 if len(parts) == 1 else parts)]
    if len(parts) == 1:
        return [first]
    if first < 1 or first > last or factor < 2:
        raise click.UsageError(f"--sizes {text}: FROM is at least 1 and at most TO, FACTOR at "
                               "least 2")
    sizes = []
    while first < last:
        sizes.append(first)
        first *= factor
    return [*sizes, last]


def _bytes(text: str, part: str) -> int:
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    unit = part[-3:] if part[-3:] in units else ""
    number = whole(part.removesuffix(unit) if unit else part)
    if number is None:
        raise click.UsageError(f"--sizes {text}: {part!r} is not a size; use 8, 64KiB or 1MiB")
    size = number * units.get(unit, 1)
    if size > 1 << 30:
        raise click.UsageError(f"--sizes {text}: a message has at most 1 GiB")
    return size


def measure(ends: Client, size: int, seconds: float, window: int | None) -> Row:
    """Measure one size for about ``seconds``."""
    before = ends.end.counters()
    speed = measure_speed(ends, len(ends.end.connections), size, seconds, window)
    after = ends.end.counters()
    lost, again, frames = (after[name] - before[name] for name in
                           ("lost", "data_again", "data_sent"))
    return Row(**asdict(speed), size=size,
               lost=max(0, lost),  # what was missed before may have been found since
               again=again, frames=frames)


def measure_speed(ends: Client | TcpClient, lanes: int, size: int, seconds: float,
                  window: int | None) -> Speed:
    """Measure one size over all ``lanes`` (connections or sockets) at once."""
    window = window or max(2, min(64, UNDER_WAY_BYTES // max(size, 1)))
    warm, _ = ends.run(Run("ping", size, FEWEST, FEWEST))
    rtt_s = max(warm.elapsed_ns / FEWEST / 1e9, 1e-7)
    pings = int(min(max(seconds / 3 / rtt_s, FEWEST), PINGS_MOST))
    trips, _ = ends.run(Run("ping", size, pings, FEWEST))
    halves_us = np.array(trips.round_trips_ns, float) / 2e3
    warm, _ = ends.run(Run("send", size, max(window, FEWEST), window))
    each_s = max(warm.elapsed_ns / max(window, FEWEST) / 1e9, 1e-8)
    messages = int(min(max(seconds / each_s, FEWEST), MESSAGES_MOST))
    bulk, others_cpu_ns = ends.run(Run("send", size, messages, window))
    total = messages * lanes
    return Speed(total, bulk.elapsed_ns / messages / 1e3, total * size / bulk.elapsed_ns,
                 float(np.percentile(halves_us, 50)), float(np.percentile(halves_us, 99)),
                 (bulk.cpu_ns + others_cpu_ns) / (total * size))


HEADER = (f"{'size':>10} {'messages':>9} {'time':>10} {'algbw':>8} {'p50':>9} {'p99':>9} "
          f"{'CPU':>8} {'lost':>13}\n"
          f"{'bytes':>10} {'':>9} {'us':>10} {'GB/s':>8} {'us':>9} {'us':>9} {'ns/B':>8} "
          f"{'packets':>13}")


TCP_HEADER = (f" | {'kernel TCP':>10} {'p50':>9} {'p99':>9} {'CPU':>8}",
              f" | {'GB/s':>10} {'us':>9} {'us':>9} {'ns/B':>8}")


def header(tcp: bool) -> str:
    """Write the head of the table."""
    added = TCP_HEADER if tcp else ("", "")
    return "\n".join(line + more for line, more in zip(HEADER.splitlines(), added, strict=True))


def line(row: Row) -> str:
    """Write a row of the table."""
    share = f"{row.lost} ({row.lost / row.frames:.2%})" if row.lost else "0"
    text = (f"{row.size:>10} {row.messages:>9} {row.time_us:>10.2f} {row.algbw_gbytes:>8.3f} "
            f"{row.p50_us:>9.2f} {row.p99_us:>9.2f} {row.cpu_ns_per_byte:>8.3g} {share:>13}")
    if row.tcp:
        text += (f" | {row.tcp.algbw_gbytes:>10.3f} {row.tcp.p50_us:>9.2f} {row.tcp.p99_us:>9.2f} "
                 f"{row.tcp.cpu_ns_per_byte:>8.3g}")
    return text


def verdict(rows: list[Row]) -> str:
    """Compare HARP with kernel TCP in one sentence."""
    small, large = rows[0], rows[-1]
    assert small.tcp
    assert large.tcp
    rate = large.algbw_gbytes / large.tcp.algbw_gbytes
    delay = small.p50_us / small.tcp.p50_us
    return (f"# HARP over kernel TCP: {rate:.2f} of the rate at {large.size} bytes, {delay:.2f} of "
            f"the delay at {small.size}")


def _read_address(_context: click.Context, _option: click.Parameter,
                  text: str | None) -> str | None:
    try:
        return text and str(ip_address(text.strip("[]")))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not an IP address, like 10.0.0.1") from None


@click.command()
@click.argument("host", required=False)
@click.option("--serve", "serves", is_flag=True, help="Wait for clients and measure with them.")
@click.option("--local", is_flag=True, help="Run both ends in this process.")
@click.option("--port", "kind", type=click.Choice(["udp", "tcp", "mem", "xdp"]),
              help="Kind of port.  [udp; --serve: the client's choice]")
@click.option("--interface", metavar="NAME",
              help="Network interface.  [xdp: the one of this end's address]")
@click.option("--address", metavar="IP", callback=_read_address,
              help="Address of this end, also for control.  [the control connection's]")
@click.option("--engines", type=click.IntRange(1, 64), default=1, show_default=True,
              help="Number of engines; each has one thread and one connection.")
@click.option("--paths", type=click.IntRange(1, 64), default=1, show_default=True,
              help="Paths per connection.")
@click.option("--zerocopy", is_flag=True,
              help="Send from and receive into the engine's frames, without copies.")
@click.option("--sizes", default="8:64MiB:8", show_default=True, metavar="FROM:TO:FACTOR",
              help="Message sizes in bytes, or one size.")
@click.option("--seconds", type=Number(0.001, 3600), default=0.5, show_default=True,
              help="Approximate time to measure each size.")
@click.option("--window", type=click.IntRange(1, 256),
              help="Messages in flight.  [64, fewer if they exceed 16 MiB]")
@click.option("--tcp", metavar="SOCKETS", type=click.IntRange(1, SOCKETS_MAX),
              help="Also measure kernel TCP, over this many sockets, each with a thread.")
@click.option("--mtu", type=click.IntRange(0, 65535), default=0,
              help="Largest IP packet in bytes.  [the interface's]")
@click.option("--faults", metavar="TEXT",
              help="Faults injected into what this end sends: drop=1%,delay=1ms.")
@click.option("--cpu", type=click.IntRange(-1, 65535), default=-1,
              help="CPU of the first engine here; the others use the following CPUs.")
@click.option("--control", metavar="PORT", type=click.IntRange(0, 65535), default=CONTROL_PORT,
              show_default=True, help="TCP port of the control connection; --serve: 0 picks any.")
@click.option("--no-control", is_flag=True,
              help="--serve: no TCP; print a handle for --handle. It holds the secret.")
@click.option("--handle", metavar="HEX", help="Measure against a server with --no-control.")
@click.option("--once", is_flag=True, help="--serve: exit after one client.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--html", "page", metavar="FILE", help="Write the rows as one page for a browser.")
@click.option("--advise", "advises", is_flag=True,
              help="Measure tcp, udp and xdp, and write the fastest as HARP_PORT.")
@click.option("--output", metavar="FILE",
              help="--advise: file of settings; - prints the line.  [the plugin's file]")
def perf(host: str | None, **options: Any) -> None:
    """Measure messages between this host and HOST, on which `harp perf --serve` runs.

    The ends agree over a TCP connection, which also carries the secret of the measured
    connections: use it only on a network that you trust, or use --no-control and --handle.
    """
    modes = [bool(host), options["serves"], options["local"], bool(options["handle"])]
    if sum(modes) != 1:
        raise click.UsageError("name a HOST, or give one of --serve, --local and --handle")
    if options["no_control"] and not options["serves"]:
        raise click.UsageError("--no-control needs --serve; the client uses --handle")
    if options["tcp"] and not (host or options["local"]):
        raise click.UsageError("--tcp needs a HOST or --local: the end that measures gives it")
    if (options["advises"] or options["output"]) and not (host and options["advises"]):
        raise click.UsageError("--advise needs a HOST on which `harp perf --serve` runs, and "
                               "--output needs --advise")
    if options["page"]:
        if options["serves"] or options["advises"]:
            raise click.UsageError("--html is for the end that measures: a HOST, --local or "
                                   "--handle, without --advise")
        check_target(options["page"], (".html", ".htm"), stdout=False)
    stop = threading.Event()
    with _terminable():
        try:
            if options["advises"]:
                _advise(host or "", options)
            elif options["serves"]:
                _serve(options, stop)
            elif options["local"]:
                _local(options, stop)
            else:
                _client(host, options, stop)
        finally:
            stop.set()


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that everything is cleaned up."""
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _asked(options: dict[str, Any], address: str | None) -> Asked:
    kind = options["kind"] or "udp"
    interface = options["interface"]
    if kind == "xdp" and not interface and address:
        interface = card_of(address)
    own = None if kind == "mem" else options["address"] or address
    port = Port(kind, interface, own, options["paths"], options["mtu"],
                faults=options["faults"])
    return Asked(port, options["engines"], options["paths"], options["zerocopy"], options["cpu"],
                 address or Asked.address)


# ---- The server ----


def _serve(options: dict[str, Any], stop: threading.Event) -> None:
    if options["no_control"]:
        _serve_handle(options, stop)
        return
    with _listening(options["control"], options["address"]) as listening:
        click.echo(f"serving on TCP port {listening.getsockname()[1]}; Ctrl-C ends it")
        while True:
            made, peer = listening.accept()
            click.echo(f"client {_plain(peer[0])}")
            channel = Lines(made)
            _serve_one(channel, _asked(options, _plain(made.getsockname()[0])), options)
            if options["once"]:
                return


def _serve_one(channel: Channel, asked: Asked, options: dict[str, Any]) -> None:
    """Serve a client; its errors end it, not the server."""
    try:
        serve(channel, asked, threading.Event(), follow=not options["kind"])
    except (click.ClickException, OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, Gone):
            click.echo("the client has gone", err=True)
        else:
            click.echo(f"this client failed: {error}", err=True)
        if options["once"]:
            raise click.ClickException(str(error)) from error
    finally:
        channel.close()


def _serve_handle(options: dict[str, Any], stop: threading.Event) -> None:
    asked = _asked(options, None)
    with Engine(asked.port, name="perf control") as engine, engine.listen() as listener:
        click.echo(f"handle: {listener.handle.to_bytes().hex()}")
        while not stop.is_set():
            with listener.accept() as connection:
                _serve_one(Messages(connection), asked, options)
            if options["once"]:
                return


def _listening(port: int, address: str | None) -> socket.socket:
    """Listen for clients, at ``address`` alone if one is given."""
    try:
        if address:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            return socket.create_server((address, port), family=family)
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise click.UsageError(f"--address: this host has no address {address}; "
                                   "ip -br address lists those here") from None
        at = f" of {address}" if address else ""
        raise click.ClickException(f"cannot listen on TCP port {port}{at}: "
                                   f"{os.strerror(error.errno or 0)}; choose another by --control"
                                   ) from error


def _plain(address: str) -> str:
    return address.removeprefix("::ffff:").split("%")[0]


# ---- The client ----


def _client(host: str | None, options: dict[str, Any], stop: threading.Event) -> None:
    if host is None:
        _client_handle(options, stop)
        return
    with _conversation(host, options) as (channel, asked):
        _report(channel, asked, options, stop)


@contextlib.contextmanager
def _conversation(host: str, options: dict[str, Any]) -> Iterator[tuple[Channel, Asked]]:
    """Talk to the server on a host; gives the channel, and what this end's engines are."""
    try:
        made = socket.create_connection((host, options["control"]), timeout=10)
    except (socket.gaierror, UnicodeError):  # no name that could be looked up
        raise click.UsageError(f"unknown host {host!r}") from None
    except OSError as error:
        why = "no answer" if isinstance(error, TimeoutError) else error.strerror
        raise click.ClickException(f"no server at {host}, TCP port {options['control']}: "
                                   f"{why}; run `harp perf --serve` there") from error
    channel = Lines(made)
    try:
        yield channel, _asked(options, _plain(made.getsockname()[0]))
    finally:
        channel.close()


def _advise(host: str, options: dict[str, Any]) -> None:
    target = options["output"] or str(conf.path())
    check_target(target)

    def measure_port(kind: str) -> list[Row]:
        with _conversation(host, {**options, "kind": kind}) as (channel, asked), \
                client(channel, asked, threading.Event()) as ends:  # its end stops with it
            return [measure(ends, size, options["seconds"], options["window"])
                    for size in (advise.SHORT_BYTES, advise.LONG_BYTES)]

    found, impossible = advise.try_ports(measure_port)
    if options["as_json"]:
        click.echo(json.dumps({"ports": [asdict(one) for one in found],
                               "impossible": impossible}, indent=2))
    else:
        click.echo(advise.table(found, impossible))
    advise.write_setting(target, advise.setting(found))
    if target != STDOUT and not options["as_json"]:
        click.echo(f"HARP_PORT={found[0].kind} written to {target}")


def _client_handle(options: dict[str, Any], stop: threading.Event) -> None:
    try:
        handle = Handle(hex_bytes(options["handle"]))
    except ValueError as error:
        raise click.UsageError(f"--handle: {error}") from error
    asked = _asked(options, None)
    with Engine(asked.port, name="perf control") as engine, \
            engine.connect(handle, dead_after=5) as connection:
        _report(Messages(connection), asked, options, stop)
        connection.flush(5)


def _local(options: dict[str, Any], stop: threading.Event) -> None:
    asked = _asked(options, None if options["interface"] else "127.0.0.1")
    here, there = (Lines(end) for end in socket.socketpair())
    cpu = asked.cpu + asked.engines if asked.cpu >= 0 else -1
    server = threading.Thread(target=_quiet_serve,
                              args=(there, replace(asked, cpu=cpu), stop))
    server.start()
    try:
        _report(here, asked, options, stop)
    except RemoteError as error:  # the other end is in this process too
        kind = click.UsageError if error.is_wrong_use else click.ClickException
        raise kind(error.why) from None
    finally:
        stop.set()
        here.close()
        server.join()
        there.close()


def _quiet_serve(channel: Channel, asked: Asked, stop: threading.Event) -> None:
    with contextlib.suppress(Exception, click.Abort):  # the client reports it
        serve(channel, asked, stop, follow=False)


def _finish(rows: list[Row], asked: Asked, here: Sequence[str], there: Sequence[str],
            options: dict[str, Any]) -> None:
    """Write the page, and print the JSON or the verdict, after the last row."""
    if options["page"]:
        _write_page(options["page"], rows, asked, here)
    if options["as_json"]:
        click.echo(json.dumps({"port": asked.port.kind, "engines": asked.engines,
                               "paths": asked.paths, "zerocopy": asked.zerocopy, "here": here,
                               "there": there, "rows": [asdict(row) for row in rows]}, indent=2))
    elif rows and options["tcp"]:
        click.echo(verdict(rows))


def _write_page(page: str, rows: list[Row], asked: Asked, lines: Sequence[str]) -> None:
    from harp.cli.perf.perf_page import perf_html

    about = [f"Port {asked.port.kind}, engines: {asked.engines}, paths: {asked.paths}", *lines]
    write_text(page, perf_html(rows, "; ".join(about), shlex.join(["harp", *sys.argv[1:]])))


def _report(channel: Channel, asked: Asked, options: dict[str, Any],
            stop: threading.Event) -> None:
    sizes = parse_sizes(options["sizes"])
    if options["tcp"] and 0 in sizes:
        raise click.UsageError("--sizes 0: TCP has no empty messages; leave out --tcp or "
                               "the size 0")
    rows = []
    with client(channel, asked, stop) as ends, contextlib.ExitStack() as opened:
        tcp = TcpClient(channel, options["tcp"], stop) if options["tcp"] else None
        if tcp:
            opened.callback(tcp.close)
        here = [text for engine in ends.end.engines for text in engine.lines]
        if not options["as_json"]:
            for end, lines in (("here", here), ("there", ends.lines)):
                click.echo("\n".join(f"# {end}: {text}" for text in lines))
            click.echo(header(tcp is not None))
        for size in _fitting(sizes, ends, asked, quiet=options["as_json"]):
            row = measure(ends, size, options["seconds"], options["window"])
            if tcp:
                row = replace(row, tcp=measure_speed(tcp, options["tcp"], size, options["seconds"],
                                                     options["window"]))
            rows.append(row)
            if not options["as_json"]:
                click.echo(line(row))
    _finish(rows, asked, here, ends.lines, options)


def _fitting(sizes: list[int], ends: Client, asked: Asked, *, quiet: bool) -> list[int]:
    """Leave out sizes that --zerocopy has too few frames for."""
    most = FRAMES // 4 * ends.end.connections[0].segment if asked.zerocopy else 1 << 30
    if max(sizes) > most and not quiet:
        click.echo(f"# --zerocopy: messages of more than {most} bytes need more frames; left out")
    return [size for size in sizes if size <= most]
