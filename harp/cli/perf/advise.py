"""``harp perf HOST --advise``: which port is the fastest between two hosts, as a line of settings.

Each port that both ends can open is measured in turn, `ROUNDS` times: the rate of long messages and
the delay of single short ones; medians count. The rate decides, since training moves long messages.
The line ``HARP_PORT=...`` takes the place of the one in the file of settings, which stays as it is
otherwise.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harp.cli.io import STDOUT, read_text, write_text
from harp.net.errors import HarpError

if TYPE_CHECKING:
    from collections.abc import Callable

    from harp.cli.perf import Row

KINDS = ("tcp", "udp", "xdp")
ROUNDS = 3
REMARK = "# harp perf --advise"
LONG_BYTES, SHORT_BYTES = 1 << 20, 8


@dataclass(frozen=True)
class Found:
    """Result of one port: GB/s of long messages, us of half a short round trip, CPU ns/B."""

    kind: str
    rate_gbytes: float
    delay_us: float
    cpu_ns_per_byte: float


def try_ports(measure: Callable[[str], list[Row]]) -> tuple[list[Found], dict[str, str]]:
    """Measure each kind of port in turn; ``measure`` returns the rows of both sizes.

    Returns what was found, fastest first, and why other kinds are not possible. Raises
    ClickException if none is.
    """
    rows: dict[str, list[list[Row]]] = {}
    impossible: dict[str, str] = {}
    for _ in range(ROUNDS):
        for kind in KINDS:
            if kind in impossible:
                continue
            try:
                rows.setdefault(kind, []).append(measure(kind))
            except (click.ClickException, HarpError) as error:
                rows.pop(kind, None)
                text = getattr(error, "message", None) or str(error)
                impossible[kind] = text.splitlines()[0]
    found = [_summary(kind, taken) for kind, taken in rows.items()]
    if not found:
        reasons = "; ".join(f"{kind}: {why}" for kind, why in impossible.items())
        raise click.ClickException(f"no port works: {reasons}")
    return sorted(found, key=lambda one: -one.rate_gbytes), impossible


def _summary(kind: str, taken: list[list[Row]]) -> Found:
    short, long = zip(*taken, strict=True)
    return Found(kind, statistics.median(row.algbw_gbytes for row in long),
                 statistics.median(row.p50_us for row in short),
                 statistics.median(row.cpu_ns_per_byte for row in long))


def table(found: list[Found], impossible: dict[str, str]) -> str:
    """Write what was found, a line a port."""
    lines = [f"{'port':<6}{'GB/s':>8}{'delay us':>10}{'CPU ns/B':>10}"]
    lines += [f"{one.kind:<6}{one.rate_gbytes:>8.3f}{one.delay_us:>10.2f}"
              f"{one.cpu_ns_per_byte:>10.3f}" for one in found]
    return "\n".join([*lines, *(f"{kind:<6}not possible: {why}"
                                for kind, why in impossible.items())])


def setting(found: list[Found]) -> str:
    """The line of settings: the fastest port, and by how much in a remark."""
    best, *others = found
    than = ", ".join(f"{best.rate_gbytes / one.rate_gbytes:.2f} times {one.kind}"
                     for one in others)
    return f"{REMARK}: {best.kind} has {than or 'no rival'}\nHARP_PORT={best.kind}\n"


def write_setting(target: str, line: str) -> None:
    """Put the line into a file of settings in place of its own; ``-``: print it.

    OutputError if the file cannot be written.
    """
    if target == STDOUT:
        click.echo(line, nl=False)
        return
    path = Path(target)
    kept = read_text(path).splitlines() if path.exists() else []
    others = [text for text in kept
              if text.partition("=")[0].strip() != "HARP_PORT" and not text.startswith(REMARK)]
    write_text(target, "".join(f"{text}\n" for text in others) + line)

