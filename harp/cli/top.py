"""``harp top``: show the engines of this host, live or once.

Rates are since the previous sample; a single sample shows totals instead. An engine with a dead
process is shown once more and then forgotten, unless ``--keep`` is given; ``--events`` shows its
last events.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import click

from harp.cli.io import check_target, naming_address, write_text
from harp.cli.options import Number, whole
from harp.cli.stats_files import Snapshot, forget, snapshots
from harp.net.errors import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from rich.console import RenderableType
    from rich.padding import Padding
    from rich.text import Text

BAD = ("bad_short", "bad_version", "bad_tag", "bad_header", "strangers")
"""Engine counters of refused frames."""
MOST_PORT = 65535
MOST_INTERVAL_S = 1e6
NARROW = 130
"""Terminal width below which the least important columns are left out."""

FOLDED = ("event", "peer", "state")
"""Text columns, which wrap in a narrow terminal."""


def amount(value: float) -> str:
    """A number in three or four figures with a decimal prefix: 12.3M."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / (limit if unit != 'k' else 1e3):.1f}{unit}"
    return f"{value:.0f}"


def span(ns: float) -> str:
    """A time in the unit that fits it."""
    for limit, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if ns >= limit:
            return f"{ns / limit:.1f} {unit}"
    return f"{ns:.0f} ns"


class Rates:
    """Differences between two samples."""

    def __init__(self, before: Sequence[Snapshot] | None, elapsed_s: float) -> None:
        self._known = before is not None
        self._before = {snapshot.file: snapshot for snapshot in before or ()}
        self._elapsed_s = elapsed_s

    @property
    def known(self) -> bool:
        """Whether there was a look before: else everything is a sum since the beginning."""
        return self._known

    def engine(self, now: Snapshot) -> Callable[[str], float]:
        """Growth of an engine's counters, a second if rates are known."""
        before = self._before.get(now.file)
        return self._growth(now.engine, before.engine if before else {})

    def connection(self, engine: Snapshot, now: dict[str, Any]) -> Callable[[str], float]:
        """The same of a connection."""
        before = self._before.get(engine.file)
        same = [row for row in before.connections if row["id"] == now["id"]] if before else []
        return self._growth(now, same[0] if same else {})

    def _growth(self, now: dict[str, Any], before: dict[str, Any]) -> Callable[[str], float]:
        if not self._known:
            return lambda name: float(now[name])
        return lambda name: (now[name] - before.get(name, 0)) / self._elapsed_s

    def moved(self, bytes_: float) -> str:
        """A sum of bytes, or a rate of them in Gb/s."""
        return f"{bytes_ * 8 / 1e9:.3f}" if self._known else amount(bytes_)

    def data(self, bytes_: float) -> str:
        """The same with its unit."""
        return f"{self.moved(bytes_)} {'Gb/s' if self._known else 'bytes'}"


def _line(*parts: str, style: str = "", indent: int = 0) -> Text:
    """Join the parts that are not empty to a line."""
    from rich.text import Text

    return Text(" " * indent + " · ".join(part for part in parts if part), style=style)


def _grid(columns: dict[str, list[str]], left: Collection[str]) -> Padding:
    """Columns by name; those in ``left`` are text."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="italic")
    for name in columns:  # what is folded is there to the last character; what is not is cut
        table.add_column(name, justify="left" if name in left else "right",
                         no_wrap=name not in FOLDED, overflow="fold")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*(Text(cell) for cell in row))
    return Padding(table, (0, 0, 1, 2))


def _engine(now: Snapshot, rates: Rates) -> list[Text]:
    grown = rates.engine(now)
    turns = grown("turns")
    seen_ns = time.monotonic_ns() if now.alive else now.engine["tended_ns"]
    moved = [
        f"{way} {rates.data(grown(f'message_bytes_{way}'))}, "
        f"{amount(grown(f'messages_{way}'))} messages{'/s' * rates.known}"
        for way in ("sent", "received")]
    refused, connections = sum(now.engine[name] for name in BAD), now.engine["connections"]
    return [
        _line(now.name, f"process {now.pid}" + " (dead)" * (not now.alive),
              f"up {span(max(0, seen_ns - now.started_ns))}",
              f"busy {grown('busy_turns') / turns:.0%}" if turns else "asleep",
              f"{connections} connection" + "s" * (connections != 1),
              style="bold" if now.alive else "bold red"),
        _line(*moved, f"{amount(refused)} frames refused" * bool(refused),
              f"{amount(now.engine['no_room'])} waits for room" * bool(now.engine["no_room"]),
              indent=2)]


def _port(now: dict[str, Any]) -> list[Text]:
    calls = now["send_calls"] + now["receive_calls"]
    copied = now["sent_copied"] + now["received_copied"]
    return [
        _line(now["line"] or "a port without a description", indent=2),
        _line(f"{amount(now['sent'])} datagrams sent", f"{amount(now['received'])} received",
              f"{amount(calls)} system calls", f"{amount(copied)} copied" * bool(copied),
              f"{amount(now['dropped'])} dropped" * bool(now["dropped"]),
              f"{amount(now['strays'])} strays" * bool(now["strays"]), indent=4)]


def _peer(address: str) -> str:
    """Format an address; shorten a mem port's random name."""
    return address[:12] + "…" if address.startswith("mem:") else address or "not known"


def _state(connection: dict[str, Any]) -> str:
    """Format a state; with the reason, if it is not a plain close."""
    reason = connection["reason"]
    if connection["state"] != "closed" or not reason:
        return str(connection["state"])
    known = reason in {one.value for one in Reason}
    return f"closed: {Reason(reason).name.lower().replace('_', ' ') if known else reason}"


def _connections(engine: Snapshot, rates: Rates, *, wide: bool) -> Padding:
    rows = engine.connections
    grown = [rates.connection(engine, row) for row in rows]
    unit = "Gb/s" if rates.known else "bytes"
    columns = {
        "id": [f"{row['id'] & 0xffffffff:08x}" for row in rows],
        "peer": [_peer(row["peer"]) for row in rows],
        "state": [_state(row) for row in rows],
        "paths": [f"{row['paths_alive']}/{row['paths']}" for row in rows],
        "rtt": [span(row["smoothed_ns"]) for row in rows],
        f"{unit} out": [rates.moved(of("message_bytes_sent")) for of in grown],
        f"{unit} in": [rates.moved(of("message_bytes_received")) for of in grown],
        "lost": [amount(row["lost"]) for row in rows]}
    if wide:
        columns |= {name: [amount(row[key]) for row in rows] for name, key in
                    (("spurious", "spurious"), ("again", "data_again"), ("frames", "data_sent"),
                     ("bad CRC", "bad_payloads"), ("window", "window_bytes"),
                     ("flight", "bytes_in_flight"))}
    return _grid(columns, {"id", "peer", "state"})


def _events(engine: Snapshot, count: int) -> Padding:
    kept = engine.events[-count:]
    return _grid({"before the last": [span(kept[-1][0] - time_ns) for time_ns, _, _ in kept],
                  "connection": [f"{own:08x}" if own else "" for _, own, _ in kept],
                  "event": [text for _, _, text in kept]}, {"connection", "event"})


def picture(engines: Sequence[Snapshot], rates: Rates, *, events: int = 0,
            columns: int = 80) -> RenderableType:
    """Draw one sample."""
    from rich.console import Group

    parts: list[RenderableType] = [] if engines else [
        _line("this user has no engine on this host")]
    for engine in engines:
        parts += _engine(engine, rates)
        for port in engine.ports:
            parts += _port(port)
        if engine.connections:
            parts.append(_connections(engine, rates, wide=columns >= NARROW))
        if events and engine.events:
            parts.append(_events(engine, events))
    return Group(*parts)


def _look(pids: Sequence[int], *, keep: bool) -> list[Snapshot]:
    """Read engines; forget the dead ones unless ``keep``."""
    seen = snapshots(pids)
    for engine in seen:
        if not engine.alive and not keep:
            forget(engine)
    return seen


def _require_engines(pids: Sequence[int]) -> None:
    """Raise ClickException where a process that was named runs no engine."""
    seen = {engine.pid for engine in snapshots(events=0)} if pids else set()
    others = f"those that do: {', '.join(map(str, sorted(seen)))}" if seen else "none does"
    for pid in pids:
        if pid not in seen:
            raise click.ClickException(f"process {pid} runs no engine that this user sees; "
                                       + others)


def _live(pids: Sequence[int], interval_s: float, events: int, *, keep: bool) -> None:
    from rich.live import Live

    before, then_s = _look(pids, keep=True), time.monotonic()
    first = picture(before, Rates(None, 1.0), events=events)
    with Live(first, screen=True, auto_refresh=False) as screen:
        while True:
            time.sleep(interval_s)
            now, now_s = _look(pids, keep=keep), time.monotonic()
            rates = Rates(before, now_s - then_s)
            screen.update(picture(now, rates, events=events, columns=screen.console.width),
                          refresh=True)
            before, then_s = now, now_s


def _export(export: str, pids: Sequence[int], interval_s: float, *, once: bool,
            keep: bool) -> None:
    """Export to a port until Ctrl-C, or to a file once or repeatedly."""
    from harp.cli.prometheus import exposition, server

    address, _, port = export.rpartition(":")
    number = whole(port)
    if number is not None:
        if number > MOST_PORT:
            raise click.UsageError(f"--export {export}: a port is at most {MOST_PORT}")
        address = address.strip("[]") or "0.0.0.0"
        with naming_address(address, number):
            made = server(address, number, lambda: _look(pids, keep=True))
        with made:
            click.echo(f"serving metrics on port {made.server_port}, path /metrics")
            _until_interrupted(made.serve_forever)
        return

    if _is_address(address):
        raise click.UsageError(f"--export {export}: {port!r} is no port: 0 to {MOST_PORT} are "
                               "possible")
    check_target(export)

    def write() -> None:
        write_text(export, exposition(_look(pids, keep=keep)), mode=0o644)

    def go_on() -> None:
        while True:
            time.sleep(interval_s)
            write()
    write()
    if not once:
        _until_interrupted(go_on)


def _is_address(text: str) -> bool:
    """Whether a text before a colon can only be an address, and no folder of a file's name."""
    try:
        ip_address(text.strip("[]"))
    except ValueError:
        return False
    return True


def _until_interrupted(run: Callable[[], object]) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        run()


@click.command()
@click.argument("pids", nargs=-1, type=int, metavar="[PROCESS]...")
@click.option("--once", is_flag=True, help="Print totals since the start, and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--interval", type=Number(0.1, MOST_INTERVAL_S), default=1.0, show_default=True,
              metavar="SECONDS", help="Time between two samples.")
@click.option("--events", type=click.IntRange(min=0), default=0, metavar="N",
              help="Also show the last N events that each engine recorded.")
@click.option("--export", metavar="[ADDRESS:]PORT | FILE",
              help="Show nothing; serve /metrics to Prometheus on a port, or write a file for "
                   "node_exporter at each interval (--once: only now).")
@click.option("--keep", is_flag=True, help="Keep engines of dead processes.")
def top(pids: tuple[int, ...], *, once: bool, as_json: bool, interval: float, events: int,
        export: str | None, keep: bool) -> None:
    """Show the engines of this host: all, or those of the given processes.

    For each engine: its ports and connections, their traffic and losses. Engines are not stopped
    or slowed. An engine of a dead process is shown one last time; --events shows what it did.
    """
    _require_engines(pids)
    if export:
        _export(export, pids, interval, once=once, keep=keep)
        return
    if as_json:
        seen = [asdict(engine) for engine in _look(pids, keep=keep)]
        click.echo(json.dumps(seen, indent=2, ensure_ascii=False))
        return
    from rich.console import Console

    console = Console()
    if once or not console.is_terminal:
        console.print(picture(_look(pids, keep=keep), Rates(None, 1.0), events=events,
                              columns=console.width))
        return
    _until_interrupted(lambda: _live(pids, interval, events, keep=keep))


if __name__ == "__main__":
    top()
