"""Comparison of fidelity packet with fidelity lab, in which real stacks run the plans (root).

Every case is the cluster of ``fidelities.yaml`` reduced to four hosts under two leaves, with some
values changed, at a two-thousandth of its rates. Its plan runs four times; the median of the last
three counts, at both fidelities. If the machine was too busy for the laboratory, the case runs
there once more, and the second run counts. Nothing is fitted. The rows are shown in a table on the
screen, and in a page of the docs with its plot.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from harp.cli.io import write_bytes, write_text
from harp.provenance import dated
from sim.cluster.cluster import Cluster
from sim.report.numbers import percent
from sim.report.screen import grid, show, text_column
from sim.schema import load
from sim.validation.fidelities import (
    FILE,
    KIB,
    MIB,
    TCP,
    Case,
    collective,
    draw_ratios,
    pattern,
    run_case,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from rich.console import Console


MEDIAN_TARGET, WORST_TARGET = 0.10, 0.20
"""Largest median and largest error of a row that the page does not explain."""
RUNS = 4
SMALL = ("hosts[0].count=4", "fabric.leaves=2", "fabric.spines=2", "fabric.hash.function=linux",
         "lab.scale=1/2000")
BBR = (*TCP, "scenarios[0].congestion=bbr")
ACROSS = pattern(range(4), [2, 3, 0, 1], MIB)
"""Each host to one under the other leaf."""

LAB_CASES = (
    Case("one message, 1 MiB", pattern([0], [2], MIB)),
    Case("incast of 3, 512 KiB each", pattern([1, 2, 3], [0] * 3, 512 * KIB)),
    Case("neighbours under one leaf, 1 MiB", pattern(range(4), [1, 0, 3, 2], MIB)),
    Case("permutation across leaves, 1 MiB", ACROSS),
    Case("permutation across leaves, planned, 1 MiB", ACROSS, ("scenarios[0].routing=plan",)),
    Case("ring, 1 MiB", collective("ring", MIB)),
    Case("ring, 4 MiB", collective("ring", 4 * MIB)),
    Case("ring on 2 channels, 2 MiB", collective("ring", 2 * MIB), ("scenarios[0].channels=2",)),
    Case("ring, one link at a quarter, 1 MiB", collective("ring", MIB),
         slow_link=("host-1/eth0", "leaf0", 0.25)),
    Case("ring, dual port, dynamic, 2 MiB", collective("ring", 2 * MIB),
         ("hosts[0].nics[0].ports=2", "hosts[0].nics[0].bond=dynamic", "fabric.rate=100Gbps")),
    Case("ring, host cap of 10 Gb/s, 1 MiB", collective("ring", MIB),
         ("vpc.vnics=1", "vpc.host_rate=10Gbps")),
    Case("tree, 1 MiB", collective("tree", MIB)),
    Case("halving-doubling, 1 MiB", collective("halving-doubling", MIB)),
    Case("all-to-all, 1 MiB", collective("alltoall", MIB)),
    Case("2D over hosts of 2, 1 MiB", collective("2d", MIB), ("hosts[0].gpus.count=2",)),
    Case("kernel TCP: one message, 1 MiB", pattern([0], [2], MIB), TCP),
    Case("kernel TCP: incast of 3, 512 KiB each", pattern([1, 2, 3], [0] * 3, 512 * KIB), TCP),
    Case("kernel TCP: permutation across leaves, 1 MiB", ACROSS, TCP),
    Case("kernel TCP: ring, 1 MiB", collective("ring", MIB), TCP),
    Case("kernel TCP: ring, BBR, 1 MiB", collective("ring", MIB), BBR),
    Case("kernel TCP: ring, 4 sockets, 2 MiB", collective("ring", 2 * MIB),
         (*TCP, "scenarios[0].sockets=4")),
    Case("kernel TCP: halving-doubling, 1 MiB", collective("halving-doubling", MIB), TCP),
    Case("kernel TCP: all-to-all, 1 MiB", collective("alltoall", MIB), TCP),
)


class LabCompared(NamedTuple):
    """Answers of packet and the laboratory to a case, in seconds."""

    case: Case
    packet_s: float
    lab_s: float
    busy: bool
    """Whether the machine was too busy for the laboratory, twice."""

    @property
    def error(self) -> float:
        """Of packet, relative to the laboratory."""
        return self.packet_s / self.lab_s - 1.0


def compare_with_lab(case: Case) -> LabCompared:
    """Run a case at both fidelities."""
    cluster = Cluster(load(FILE, [*SMALL, *case.changes]))
    packet_s, _, _ = run_case(cluster, case, "packet", RUNS)
    for _ in range(2):
        lab_s, notes, _ = run_case(cluster, case, "lab", RUNS)
        busy = any("too busy" in note for note in notes)
        if not busy:
            break
    return LabCompared(case, median(packet_s[1:]), median(lab_s[1:]), busy)


def median_error(rows: Iterable[LabCompared]) -> float:
    """Median of the absolute relative errors."""
    return median(abs(row.error) for row in rows)


def unexplained(rows: Iterable[LabCompared]) -> list[LabCompared]:
    """Rows that are off by more than `WORST_TARGET` without a note."""
    return [row for row in rows if abs(row.error) > WORST_TARGET and not row.case.note]


INTRODUCTION = """\
# Packet held against the laboratory

Made by `python -m sim.validate lab --page docs/results/lab-validation.md` (root; four to five
minutes, and it says how far it is); do not edit. Each row is one collective or pattern on four
hosts of 25 Gb/s under two leaves, with some values changed, at a two-thousandth of the rates:
`packet` simulates it, and in the laboratory ([lab.md](../inside/lab.md)) HARP's engines or the
kernel's TCP carry the bytes over kernel routes. It runs four times, and the median of the last
three counts; once more if the machine was too busy. The error is that of `packet` relative to the
laboratory: below zero where packets are too fast. Nothing is fitted.
"""


def print_compared(rows: Sequence[LabCompared], console: Console) -> None:
    """Print a line a row, and what they amount to."""
    from rich.text import Text

    show(console, grid([
        text_column("case", [row.case.name for row in rows], align="left", folds=True),
        text_column("packet", [_us(row.packet_s) for row in rows]),
        text_column("lab", [_us(row.lab_s) for row in rows]),
        text_column("error", [percent(row.error, sign=True) for row in rows]),
    ]))
    show(console, Text(summary_line(rows)))


def write_compared(rows: Sequence[LabCompared], page: Path) -> None:
    """Write the page, whose date asks git for changed files, and then its plot beside it."""
    plot = page.with_suffix(".png")
    lines = ["| case | packet | lab | error | why |", "|---|---|---|---|---|"]
    lines += [f"| {row.case.name} | {_us(row.packet_s)} | {_us(row.lab_s)} | "
              f"{percent(row.error, sign=True)} | {row.case.note} |" for row in rows]
    picture = f"![Packet over laboratory of every row]({plot.name})"
    text = [INTRODUCTION, dated(measured=True), summary_line(rows), "", picture, "", *lines, ""]
    write_text(str(page), "\n".join(text))
    write_bytes(str(plot), draw_ratios([row.case.name for row in rows],
                                       [row.error for row in rows], WORST_TARGET, "packet / lab"))


def summary_line(rows: Sequence[LabCompared]) -> str:
    """Say in a sentence how near the two are, beside the targets."""
    near, busy = (sum(map(bool, each)) for each in zip(*(
        (abs(row.error) <= WORST_TARGET, row.busy) for row in rows), strict=True))
    late = (f" The machine was too busy for {busy} of them: their times in the laboratory are too "
            "long." if busy else "")
    return (f"{len(rows)} cases: median error {median_error(rows):.1%} (target "
            f"{MEDIAN_TARGET:.0%}); {near} of them within {WORST_TARGET:.0%}.{late}")


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} us"
