"""The table of ``sim.run --collective``, with what each time (--explain) and interval is due to.

It has nccl-tests' columns for every algorithm, beside NCCL's own choice (`sim.network.nccl`), which
is simulated as well. `sim.records.busbw` defines algbw, busbw and size. The fastest algorithm of
each size has a star; P10 and P90 are those of busbw (`sim.answer.collective_spread`).

``--explain`` has a line for each row: the shares of its time, the longest first. ``--why`` is a
tornado of the fastest row of each size: busbw where each parameter is at its own P10 and P90 while
all others stay at their values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.records.busbw import plain_name
from sim.report.numbers import percent
from sim.report.quantities import quantity
from sim.report.screen import BAR_WIDTH, Column, console_for, fit, grid, show, text_column

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from sim.records.results import Cause, CollectiveReport, CollectiveRow


NOT_MODELLED = ("NCCL chooses here between rings, trees and NVLS. CollNet and PAT, which it may "
                "prefer with SHARP or with one GPU on each host, are not modelled.")
"""Limits of the simulated choice of NCCL."""
_REDUCE = ("allreduce", "reducescatter", "reduce")
_FIXED_WIDTH = 48
"""Character cells that size, count, type and redop take at least, with the gaps after them."""


def print_collective(report: CollectiveReport, *, console: Console | None = None) -> None:
    """Print one line for each size, with time, algbw, busbw and its interval for each algorithm.

    On a terminal, groups that do not fit beside each other follow below, each with the sizes before
    it; in a file all are in one line, whatever its length.
    """
    from rich.text import Text

    console = console_for() if console is None else console
    show(console, Text(f"{report.topology}: {report.collective}, {report.ranks} ranks",
                       style="bold"))
    rows = {(row.size_bytes, row.algorithm): row for row in report.rows}
    sizes = sorted({row.size_bytes for row in report.rows})
    groups = [_group(name, [rows.get((size, name)) for size in sizes], best_times(report))
              for name in dict.fromkeys(row.algorithm for row in report.rows)]
    for chunk in _chunks(groups, console):
        wide = [*_size_columns(report, sizes), *(column for group in chunk for column in group)]
        if not console.is_terminal:
            console.width = max(console.width, _width(wide))
        show(console, grid(wide))
    if any(row.choice for row in report.rows):
        show(console, Text(NOT_MODELLED, style="dim"))
    for note in report.notes:
        show(console, Text(note, style="dim"))


def best_times(report: CollectiveReport) -> dict[int, float]:
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
        return [Text(text, style="bold green" if is_best(row, best) else "")
                for text, row in zip(texts, rows, strict=True)]

    chosen = [] if not any(row and row.choice for row in rows) else [
        Column(f"{name}\nchooses\n", [Text(row.choice if row else "-") for row in rows])]
    times = ("-" if row is None else time_us(row.time_s * 1e6) for row in rows)
    return [
        *chosen,
        Column(f"{'' if chosen else name}\ntime\n(us)", cells(
            f"*{time}" if is_best(row, best) else time
            for time, row in zip(times, rows, strict=True))),
        Column("\nalgbw\n(GB/s)", cells(
            "-" if row is None else f"{row.algbw / 1e9:.2f}" for row in rows)),
        Column("\nbusbw\n(GB/s)", cells(
            "-" if row is None else f"{row.busbw / 1e9:.2f}" for row in rows)),
        *_interval(rows),
    ]


def _interval(rows: Sequence[CollectiveRow | None]) -> list[Column]:
    """P10, P50 and P90 of busbw, where a row has an interval."""
    found = [row.busbw_interval if row is not None else None for row in rows]
    if not any(found):
        return []
    return [text_column(f"\nbusbw\n{name}", ("-" if each is None else f"{each[place] / 1e9:.2f}"
                                              for each in found))
            for place, name in enumerate(("P10", "P50", "P90"))]


def is_best(row: CollectiveRow | None, best: dict[int, float]) -> bool:
    """Whether no algorithm takes less; equal times may differ by rounding."""
    return row is not None and row.time_s <= best[row.size_bytes] * (1 + 1e-9)


def time_us(time: float) -> str:
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


MOST_LIMITS = 4
"""Parts of a row's time that are shown."""


def print_limits(report: CollectiveReport, *, console: Console | None = None) -> None:
    """Print what each row's time is due to."""
    console = console_for() if console is None else console
    rows = [row for row in report.rows if row.limits]
    if not rows:
        return
    parts = [[f"{limit.name} {percent(limit.seconds / row.time_s)}"
              for limit in row.limits[:MOST_LIMITS]] for row in rows]
    columns = [*_names(rows), text_column("time\n(us)", (time_us(row.time_s * 1e6)
                                                         for row in rows))]
    columns += [text_column(header, (part[place] if place < len(part) else "" for part in parts),
                            align="left", drop=place)
                for place, header in enumerate(("bottleneck", "runner-up", "then", "then"))]
    show(console, grid(fit(columns, console.width)))


MOST_CAUSES = 5
"""Causes that are shown of a row."""


def causes_of_best(report: CollectiveReport) -> list[tuple[CollectiveRow, Cause]]:
    """Rank the causes of the fastest row of each size."""
    best, done = best_times(report), set()
    lines: list[tuple[CollectiveRow, Cause]] = []
    for row in report.rows:
        if is_best(row, best) and row.causes and row.size_bytes not in done:
            done.add(row.size_bytes)
            lines += [(row, cause) for cause in row.causes[:MOST_CAUSES]]
    return lines


def print_collective_causes(report: CollectiveReport, *, console: Console | None = None) -> None:
    """Print one line a cause, of the fastest row of each size."""
    from rich.text import Text

    console = console_for() if console is None else console
    lines = causes_of_best(report)
    if not lines:
        show(console, Text("No uncertain parameter changes any row.", style="dim"))
        return
    widest = max(cause.width / row.busbw for row, cause in lines)
    plain = console.options.ascii_only
    columns = [
        *_names([row for row, _ in lines]),
        text_column("due to", (cause.parameter for _, cause in lines), align="left"),
        text_column("from", (cause_end(cause, cause.low) for _, cause in lines), drop=1),
        text_column("to", (cause_end(cause, cause.high) for _, cause in lines), drop=1),
        text_column("busbw\nfrom", (f"{cause.at_low / 1e9:.2f}" for _, cause in lines)),
        text_column("busbw\nto", (f"{cause.at_high / 1e9:.2f}" for _, cause in lines)),
        text_column("width", (percent(cause.width / row.busbw) for row, cause in lines)),
        text_column("", (("#" if plain else "█") * max(1, round(
            BAR_WIDTH * cause.width / row.busbw / widest)) for row, cause in lines),
            align="left", drop=2),
    ]
    ends = [number for number, (row, _) in enumerate(lines[:-1]) if lines[number + 1][0] is not row]
    show(console, grid(fit(columns, console.width), ends))


def _names(rows: Sequence[CollectiveRow]) -> list[Column]:
    """Size and algorithm, once for rows that follow each other."""
    new = [number == 0 or rows[number - 1] is not row for number, row in enumerate(rows)]
    return [text_column("size\n(B)", (str(row.size_bytes) if first else ""
                                      for row, first in zip(rows, new, strict=True))),
            text_column("algorithm", (row.algorithm if first else ""
                                      for row, first in zip(rows, new, strict=True)),
                        align="left")]


def cause_end(cause: Cause, value: float | None) -> str:
    """Write a parameter's P10 or P90; nothing where the cause is no figure."""
    return "" if value is None else quantity(cause.parameter, float(f"{value:.3g}"))
