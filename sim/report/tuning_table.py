"""What a tuner's table brings against NCCL's own choice, size by size (``sim.tune``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.report.screen import Column, console_for, grid, show, text_column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from sim.answer.nccl_tuning import Size, Tuned

LIMITS = ("Sizes without a row stay NCCL's. NVLS, CollNet and PAT, which NCCL may prefer on "
          "NVSwitch, with SHARP and with one GPU a host, are not modelled; rows replace them.")


def print_tuned(tuned: Tuned, *, console: Console | None = None) -> None:
    """Print a line for each size of each collective, and what was left out."""
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
        show(console, Text(f"{tuned.tried} of {tuned.of} sizes were tried before the budget was "
                           "spent: --budget gives more."))
    show(console, Text(LIMITS, style="dim"))


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
