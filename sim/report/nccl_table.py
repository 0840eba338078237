"""nccl-tests' columns for every algorithm in one table (``--collective``).

`sim.records.busbw` tells what algbw, busbw and the size are. The fastest algorithm of each size
carries a star. Beside our plans stands what NCCL would choose (`sim.network.nccl`), simulated as
well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.records.busbw import plain_name
from sim.report.screen import Column, console_for, grid, show

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console
    from rich.text import Text

    from sim.records.results import CollectiveReport, CollectiveRow

LIMITS = ("NCCL chooses here between rings and trees; NVLS, CollNet and PAT, which it may prefer "
          "on NVSwitch, with SHARP and with one GPU a host, are not modelled.")
"""What the rows of NCCL leave out."""
_REDUCE = ("allreduce", "reducescatter", "reduce")
_FIXED_WIDTH = 48
"""Character cells that size, count, type and redop take at least, with the gaps after them."""


def print_collective(report: CollectiveReport, *, console: Console | None = None) -> None:
    """Print one line a size, with a group of time, algbw and busbw for each algorithm.

    Groups that do not fit beside each other follow below, each with the sizes before it; into a
    file all stand in one line, whatever its length.
    """
    from rich.text import Text

    console = console_for() if console is None else console
    show(console, Text(f"{report.topology}: {report.collective}, {report.ranks} ranks",
                       style="bold"))
    rows = {(row.size_bytes, row.algorithm): row for row in report.rows}
    sizes = sorted({row.size_bytes for row in report.rows})
    groups = [_group(name, [rows.get((size, name)) for size in sizes], _best(report))
              for name in dict.fromkeys(row.algorithm for row in report.rows)]
    for chunk in _chunks(groups, console):
        wide = [*_size_columns(report, sizes), *(column for group in chunk for column in group)]
        if not console.is_terminal:
            console.width = max(console.width, _width(wide))
        show(console, grid(wide))
    if any(row.choice for row in report.rows):
        show(console, Text(LIMITS, style="dim"))


def _best(report: CollectiveReport) -> dict[int, float]:
    """Return the shortest time of each size."""
    best: dict[int, float] = {}
    for row in report.rows:
        best[row.size_bytes] = min(row.time_s, best.get(row.size_bytes, row.time_s))
    return best


def _size_columns(report: CollectiveReport, sizes: Sequence[int]) -> list[Column]:
    from rich.text import Text

    counts = {row.size_bytes: row.count for row in report.rows}
    redop = "sum" if plain_name(report.collective) in _REDUCE else "none"
    return [
        Column("\nsize\n(B)", [Text(str(size)) for size in sizes]),
        Column("\ncount\n(elements)", [Text(str(counts[size])) for size in sizes]),
        Column("\ntype\n", [Text(report.datatype) for _ in sizes]),
        Column("\nredop\n", [Text(redop) for _ in sizes]),
    ]


def _group(name: str, rows: Sequence[CollectiveRow | None],
           best: dict[int, float]) -> list[Column]:
    from rich.text import Text

    def cells(texts: Iterator[str]) -> list[Text]:
        return [Text(text, style="bold green" if _is_best(row, best) else "")
                for text, row in zip(texts, rows, strict=True)]

    chosen = [] if not any(row and row.choice for row in rows) else [
        Column(f"{name}\nchooses\n", [Text(row.choice if row else "-") for row in rows])]
    times = ("-" if row is None else _time_us(row.time_s * 1e6) for row in rows)
    return [
        *chosen,
        Column(f"{'' if chosen else name}\ntime\n(us)", cells(
            f"*{time}" if _is_best(row, best) else time
            for time, row in zip(times, rows, strict=True))),
        Column("\nalgbw\n(GB/s)", cells(
            "-" if row is None else f"{row.algbw / 1e9:.2f}" for row in rows)),
        Column("\nbusbw\n(GB/s)", cells(
            "-" if row is None else f"{row.busbw / 1e9:.2f}" for row in rows)),
    ]


def _is_best(row: CollectiveRow | None, best: dict[int, float]) -> bool:
    # Equal times may differ by rounding.
    return row is not None and row.time_s <= best[row.size_bytes] * (1 + 1e-9)


def _time_us(time: float) -> str:
    """Write microseconds as nccl-tests does: fewer decimals for longer times."""
    if time >= 10000:
        return f"{time:.0f}"
    return f"{time:.1f}" if time >= 100 else f"{time:.2f}"


def _width(columns: Sequence[Column]) -> int:
    return sum(column.narrowest + 2 for column in columns)


def _chunks(groups: Sequence[list[Column]], console: Console) -> Iterator[list[list[Column]]]:
    if not console.is_terminal:
        yield list(groups)
        return
    chunk: list[list[Column]] = []
    room = console.width - _FIXED_WIDTH
    for group in groups:
        if chunk and sum(map(_width, [*chunk, group])) > room:
            yield chunk
            chunk = []
        chunk.append(group)
    yield chunk
