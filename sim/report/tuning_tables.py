"""Tables of ``sim.tune``: gains of a tuning table, and searched settings.

It prints the gain of a tuning table over NCCL's own choice, size by size, and writes the result of
`sim.answer.settings_search` as an environment file and a short report.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from harp.lightcc.policy import allreduce_path
from harp.lightcc.settings import LightSettings
from sim.answer.settings_search import NCCL, environment_of
from sim.report.screen import Column, console_for, grid, show, text_column
from sim.schema.units import SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from sim.answer.nccl_tuning import Size, Tuned
    from sim.answer.settings_search import Found, Point


NOT_TUNED = ("NCCL itself chooses at sizes without a row. CollNet and PAT, which NCCL may "
             "prefer with SHARP or with one GPU on each host, are not modelled; rows replace "
             "them.")


def print_tuned(tuned: Tuned, *, console: Console | None = None) -> None:
    """Print a line for each size of each collective."""
    from rich.text import Text

    console = console_for() if console is None else console
    one = tuned.communicator
    for collective, sizes in tuned.sizes.items():
        show(console, Text(f"{collective}, {one.ranks} ranks on {one.nodes} hosts", style="bold"))
        show(console, grid(_columns(sizes)))
        show(console, Text(""))
    gains = [size.gain for sizes in tuned.sizes.values() for size in sizes if size.best]
    best = f", up to {max(gains):.2f} times as fast" if gains else ""
    rows, sizes_of = len(one.rows), sum(map(len, tuned.sizes.values()))
    show(console, Text(f"{rows} {'row changes' if rows == 1 else 'rows change'} {len(gains)} of "
                       f"{sizes_of} size{'s'[:sizes_of - 1]}{best}."))
    if tuned.tried < tuned.of:
        show(console, Text(f"{tuned.tried} of {tuned.of} sizes were tried within the budget; "
                           "--budget raises it."))
    show(console, Text(NOT_TUNED, style="dim"))


def _columns(sizes: Sequence[Size]) -> list[Column]:
    from rich.text import Text

    own = [size.own.name if size.own.predicted_s else "its own" for size in sizes]
    return [
        text_column("size\n(B)", (str(size.nbytes) for size in sizes)),
        text_column("NCCL\nchooses", own, align="left"),
        text_column("time\n(us)", (f"{size.own_s * 1e6:.1f}" for size in sizes)),
        text_column("the table\nsays", (size.best.name if size.best else "-" for size in sizes),
                    align="left"),
        text_column("time\n(us)", (f"{size.best_s * 1e6:.1f}" for size in sizes)),
        Column("times\nas fast", [Text(f"{size.gain:.2f}" if size.best else "-",
                                       style="bold green" if size.best else "")
                                  for size in sizes]),
    ]


SIZES = (4 << 10, 64 << 10, 1 << 20, 4 << 20, 25 << 20, 128 << 20)
"""Bytes of tensors whose path the report names."""

BYTES = ("fusion", "threshold")
"""Axes with values in bytes."""


def env_file(found: Found, rule: str, table: str | None) -> str:
    """Text of a file to ``source`` before the job."""
    variables = environment_of(found.best, rule)
    if table is not None:
        variables["HARP_TUNER"] = table
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    if rule == "size":
        lines.append("# DistributedDataParallel(bucket_cap_mb="
                     f"{float(found.best['fusion']) / (1 << 20):g})")
    return "\n".join(lines) + "\n"


def settings_report(found: Found, title: str, ranks: int, hosts: int) -> str:
    """Write the report in Markdown."""
    return "\n".join(_lines(found, title, ranks, hosts)) + "\n"


def _lines(found: Found, title: str, ranks: int, hosts: int) -> Iterator[str]:
    gain = found.default_s / found.best_s
    yield f"# Settings for {title}, {ranks} ranks on {hosts} hosts"
    yield ""
    yield (f"A step takes {_ms(found.best_s)} ms instead of {_ms(found.default_s)} with all "
           f"defaults: {gain:.2f} times as fast. {found.tried} of {found.of} choices were "
           "simulated.")
    if found.note:
        yield found.note
    yield from ("", "## What each setting brings", "",
                "| setting | chosen | default | step with the default (ms) | it brings |",
                "|---|---|---|---|---|")
    for axis, value, default, step_s in found.brings:
        yield (f"| {axis} | {_shown(axis, value)} | {_shown(axis, default)} | {_ms(step_s)} | "
               f"{100 * (step_s / found.best_s - 1):+.1f} % |")
    if not found.brings:
        yield "| all | default | default | | |"
    yield from ("", "## The best, checked again", "", "| choice | flow (ms) | packet (ms) |",
                "|---|---|---|")
    for point, flow_s, packet_s in found.checked:
        yield f"| {_named(point)} | {_ms(flow_s)} | {_ms(packet_s) if packet_s else '-'} |"
    if found.best["algorithm"] != NCCL:
        yield from _paths(found.best, ranks, hosts)


def _paths(point: Point, ranks: int, hosts: int) -> Iterator[str]:
    settings = LightSettings.from_env({name: value for name, value
                                       in environment_of(point, "").items()
                                       if name.startswith("LIGHT_")})
    yield from ("", "## Which path a tensor takes", "", "| size | path | why |", "|---|---|---|")
    for nbytes in SIZES:
        path = allreduce_path(settings, ranks, nbytes, hosts=hosts)
        yield f"| {SIZE.format(nbytes)} | {path.plan} | {path.why} |"


def _named(point: Point) -> str:
    return ", ".join(f"{axis} {_shown(axis, value)}" if axis != "algorithm" else str(value)
                     for axis, value in sorted(point.items()))


def _shown(axis: str, value: object) -> str:
    return SIZE.format(value) if axis in BYTES and isinstance(value, int) else str(value)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"
