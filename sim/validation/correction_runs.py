"""Runs from which the intervals of `sim.network.corrections` are derived.

Each cause has cases that run at flow and at packet. None of them is a case of
`sim.validation.fidelities` or of a test: those check the intervals with other sizes, rates and
numbers of hosts. An interval spans its cases, rounded outwards to whole per cents, and includes 0,
since a cause may have no effect. Cases in which kernel TCP waits for its retransmission timer are
counted and left out: that time is no share of a collective's, and the correction mentions it beside
its interval.
"""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sim.network.corrections import EXCHANGES, FORKS, SPRAY, Correction, Interval
from sim.report.screen import grid, show, text_column
from sim.validation.fidelities import MIB, TCP, Case, collective, compare, pattern

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

SPRAYED = ("scenarios[0].routing=spray",)
HOSTS = ((8, 2), (12, 3), (16, 4), (20, 5), (32, 4))
"""Hosts and leaves."""
EXCHANGING = ((8, 2), (16, 4), (32, 4))
"""The same, for halving and doubling."""
RATES = ("10Gbps", "25Gbps", "40Gbps")


class Derived(NamedTuple):
    """A correction's interval derived from its cases, for HARP or for kernel TCP."""

    correction: Correction
    tcp: bool
    cases: int
    timeouts: int
    """Of these, left out."""
    interval: Interval

    @property
    def shipped(self) -> Interval:
        """The simulator's answer."""
        return self.correction.interval(tcp=self.tcp)

    @property
    def stale(self) -> bool:
        """Whether that is something else."""
        return any(abs(ours - theirs) > 1e-9
                   for ours, theirs in zip(self.shipped, self.interval, strict=True))


def made_of(hosts: int, leaves: int, rate: str, *, tcp: bool = False) -> tuple[str, ...]:
    """Changes that make a cluster of ``hosts`` and ``leaves``, every link of one rate."""
    return (f"hosts[0].count={hosts}", f"fabric.leaves={leaves}",
            f"hosts[0].nics[0].rate={rate}", f"fabric.rate={rate}", *(TCP if tcp else ()))


def permutation(hosts: int, leaves: int, seed: int) -> list[int]:
    """A random permutation; with an odd seed no host sends to its own leaf: the fabric is full."""
    random, leaf = np.random.default_rng(seed), np.arange(hosts) // (hosts // leaves)
    own = leaf if seed % 2 else np.arange(hosts)
    while True:
        far = random.permutation(hosts)
        if (own[far] != own).all():
            return [int(host) for host in far]


def forks(*, tcp: bool) -> Iterator[Case]:
    """Trees of small and middling sizes."""
    for plan, (hosts, leaves), rate, size in product(("tree", "broadcast"), HOSTS, RATES, (2, 8)):
        yield Case(f"{plan} of {hosts}, {rate}, {size} MiB", collective(plan, size * MIB),
                   made_of(hosts, leaves, rate, tcp=tcp))


def sprays(*, tcp: bool) -> Iterator[Case]:
    """Permutations, short and long."""
    for (hosts, leaves), (rate, size), seed in product(
            HOSTS, zip(RATES, (4, 16, 16), strict=True), range(1, 5)):
        far = permutation(hosts, leaves, seed)
        yield Case(f"spray of {hosts}, {rate}, {size} MiB, {seed}",
                   pattern(range(hosts), far, size * MIB),
                   (*made_of(hosts, leaves, rate, tcp=tcp), *SPRAYED))


def exchanges(*, tcp: bool) -> Iterator[Case]:
    """Collectives whose steps are exchanges between pairs of ranks."""
    for (plan, gpus), (hosts, leaves), rate, size in product(
            (("halving-doubling", 1), ("alltoall", 1), ("hierarchical-alltoall", 2)), EXCHANGING,
            RATES, (4, 24)):
        yield Case(f"{plan} of {hosts}, {rate}, {size} MiB", collective(plan, size * MIB),
                   (*made_of(hosts, leaves, rate, tcp=tcp), f"hosts[0].gpus.count={gpus}"))


def derive() -> Sequence[Derived]:
    """Run all cases."""
    found: list[Derived] = []
    for (correction, cases), tcp in product(CAUSES, (False, True)):
        rows = [compare(case) for case in cases(tcp=tcp)]
        longer = [row.packet_s / row.flow_s - 1 for row in rows if not row.timed_out]
        low, high = math.floor(100 * min(0, *longer)), math.ceil(100 * max(0, *longer))
        found.append(Derived(correction, tcp, len(rows), len(rows) - len(longer),
                             Interval(low / 100, high / 100)))
    return found


CAUSES = ((FORKS, forks), (SPRAY, sprays), (EXCHANGES, exchanges))


def print_derived(rows: Sequence[Derived], console: Console) -> None:
    """Print a line a correction and kind of ends."""
    show(console, grid([
        text_column("correction", [row.correction.name for row in rows], align="left"),
        text_column("ends", ["kernel TCP" if row.tcp else "HARP" for row in rows], align="left"),
        text_column("cases", [str(row.cases) for row in rows]),
        text_column("timeouts", [str(row.timeouts) for row in rows]),
        text_column("shipped", [row.shipped.in_words() for row in rows]),
        text_column("found", [row.interval.in_words() for row in rows]),
    ]))
