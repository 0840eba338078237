"""Comparison of fidelity flow with fidelity packet, and its page of the docs.

Each case is a collective or pattern alone on the cluster of ``fidelities.yaml`` with some values
changed. Its plan runs twice, and the second run counts, because sessions are open by then and know
their paths.
Nothing is fitted.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import simpy

from harp.cli.io import write_bytes, write_text
from harp.collectives.collective_plan import Plan, Stage
from harp.collectives.ir import Buffer, Op, Phase, Transfers
from harp.collectives.registry import make_plan
from harp.provenance import dated
from sim.cluster.cluster import Cluster
from sim.cluster.placement import choose_gpus, common_group, place
from sim.network.fidelity import make_network, wall_clock
from sim.network.interface import Site
from sim.network.transport import Style
from sim.records.timeline_track import Timeline
from sim.report.numbers import percent
from sim.report.screen import grid, show, text_column
from sim.schema import load
from sim.schema.nccl_defaults import channel_count
from sim.schema.parameters import load_stack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray
    from rich.console import Console

    from sim.network.corrections import Correction, Interval

    Ints = NDArray[np.int64]
    Maker = Callable[[int, int], Plan]


def draw_ratios(names: Sequence[str], errors: Sequence[float], within: float,
                label: str) -> bytes:
    """Draw 1 + error of each case, over the band in which it should lie, as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.3 * len(names) + 1), layout="constrained")
    axes = figure.add_subplot()
    places = range(len(names), 0, -1)
    axes.axvspan(1 - within, 1 + within, color="0.93")
    axes.axvline(1.0, color="0.6", linewidth=1)
    axes.plot([1 + error for error in errors], list(places), "o", color="tab:blue")
    axes.set_yticks(list(places), names)
    axes.set_xlabel(label)
    stored = BytesIO()
    figure.savefig(stored, format="png", dpi=100)
    return stored.getvalue()


FILE = Path(__file__).with_suffix(".yaml")
UNIT_BYTES = 4
MEDIAN_TARGET, WORST_TARGET = 0.05, 0.10
"""Largest median and largest error of a row that the page does not explain."""
KIB, MIB = 1 << 10, 1 << 20
TIMEOUT_S = 0.2
"""Linux's TCP_RTO_MIN, the least time until TCP retransmits unacknowledged data."""


@dataclass(frozen=True, eq=False)
class Pattern(Stage):
    """Messages of one size between pairs of ranks, all at once."""

    src: Ints
    dst: Ints
    nbytes: int

    @property
    def steps(self) -> int:
        """One."""
        return 1

    def step(self, index: int) -> Transfers:
        """All messages; each has a place of its own at its destination."""
        return Transfers.build(step=index, src=self.src, dst=self.dst, op=Op.COPY, src_offset=0,
                               length=self.nbytes, dst_buffer=Buffer.OUT,
                               dst_offset=self.src * self.nbytes)

    def sends(self, rank: int) -> Transfers:
        """Transfers that ``rank`` sends."""
        return self.step(0).where(self.src == rank)

    def receives(self, rank: int) -> Transfers:
        """Transfers that ``rank`` receives."""
        return self.step(0).where(self.dst == rank)

    def phases(self) -> Iterator[Phase]:
        """One phase in which every message is a flow."""
        each = np.arange(len(self.src), dtype=np.int32)
        yield Phase("pattern", self.src.astype(np.int32), self.dst.astype(np.int32),
                    np.full(len(self.src), self.nbytes, np.int64), 1, each)


def pattern(src: Iterable[int], dst: Iterable[int], nbytes: int) -> Maker:
    """A plan of `Pattern`."""
    pairs = np.array(list(src)), np.array(list(dst))

    def make(ranks: int, _group: int) -> Plan:
        return Plan("pattern", "alltoall", ranks, nbytes, UNIT_BYTES, (Pattern(*pairs, nbytes),),
                    {Buffer.DATA: nbytes, Buffer.OUT: ranks * nbytes})
    return make


def collective(name: str, nbytes: int) -> Maker:
    """A plan of the registry."""
    def make(ranks: int, group: int) -> Plan:
        return make_plan(name, ranks=ranks, nbytes=nbytes, unit_bytes=UNIT_BYTES, group=group)
    return make


class Case(NamedTuple):
    """A cluster, by changes to the file's, and a plan."""

    name: str
    make: Maker
    changes: tuple[str, ...] = ()
    slow_link: tuple[str, str, float] | None = None
    """Both ends of a link that delivers only a share of its rate."""
    note: str = ""
    """Why flow is off by more than `WORST_TARGET`, if it is and no correction says so."""
    without: tuple[str, ...] = ()
    """Further changes that take away what the note or correction names, to test it."""


class Ran(NamedTuple):
    """Times of a case's plan, run after run, and what the network has to say."""

    times_s: list[float]
    notes: Sequence[str]
    corrections: tuple[Correction, ...] = ()


class Compared(NamedTuple):
    """Answers of both fidelities to a case, in seconds."""

    case: Case
    flow_s: float
    packet_s: float
    without: float | None = None
    """The error where what the case's note or correction names is taken away."""
    corrections: tuple[Correction, ...] = ()
    """Effects that flow leaves out, by its own notes."""

    @property
    def error(self) -> float:
        """Of flow, relative to packet."""
        return self.flow_s / self.packet_s - 1.0

    @property
    def timed_out(self) -> bool:
        """Whether kernel TCP waited for its retransmission timer, and flow knows of no loss."""
        return TCP[0] in self.case.changes and self.packet_s - self.flow_s > TIMEOUT_S

    @property
    def intervals(self) -> list[Interval]:
        """Of its corrections."""
        tcp = TCP[0] in self.case.changes
        return [correction.interval(tcp=tcp) for correction in self.corrections]

    @property
    def corrected(self) -> bool:
        """Whether packet's answer lies where flow's corrections say."""
        longer = self.packet_s / self.flow_s - 1.0
        return bool(self.intervals) and (sum(each.low for each in self.intervals) <= longer
                                         <= sum(each.high for each in self.intervals))


FOUR_GPUS = ("hosts[0].gpus.count=4", "hosts[0].count=8", "fabric.leaves=2")
OVERSUBSCRIBED = ("fabric.spines=1",)
TCP = ("scenarios[0].stack=kernel-tcp",)
DUAL_PORT = ("hosts[0].nics[0].ports=2",)
QUEUES = ("queues at hosts that send and receive, and at ports where flows meet, are latency to "
          "steps that follow one another, and a step lasts as long as its slowest message")
FOUR_RINGS = ("messages of a host's four rings wait for one another at each step, in packet less "
              "than flow takes them to")
ONE_RING = ("hosts[0].gpus.count=1",)
NO_QUEUES = ("hosts[0].nics[0].rate=100Gbps", "fabric.rate=400Gbps")
"""The network thread is the limit then, and nothing waits at a port for long."""
NO_QUEUES_OF_FOUR = ("hosts[0].nics[0].rate=400Gbps", "fabric.rate=1600Gbps")
"""The same for hosts of four GPUs, with four times as many network threads."""
TWO_HOSTS = ("hosts[0].count=2", "fabric.leaves=2")
"""A tree of two ranks has neither forks nor joins."""
across = partial(pattern, range(16), [(n + 4) % 16 for n in range(16)])
random_pairs = partial(pattern, range(16), [6, 12, 9, 15, 1, 10, 3, 14, 0, 4, 13, 2, 8, 5, 11, 7])

CASES = (
    Case("incast of 4, 4 MiB each", pattern(range(1, 5), [0] * 4, 4 * MIB)),
    Case("incast of 8, 4 MiB each", pattern(range(1, 9), [0] * 8, 4 * MIB)),
    Case("incast of 15, 4 MiB each", pattern(range(1, 16), [0] * 15, 4 * MIB)),
    Case("neighbours under one leaf, 16 MiB",
         pattern(range(16), [n ^ 1 for n in range(16)], 16 * MIB)),
    Case("permutation across leaves, 16 MiB", across(16 * MIB)),
    Case("random permutation, 16 MiB", random_pairs(16 * MIB)),
    Case("random permutation, planned, 16 MiB", random_pairs(16 * MIB),
         ("scenarios[0].routing=plan",)),
    Case("random permutation, sprayed, 16 MiB", random_pairs(16 * MIB),
         ("scenarios[0].routing=spray",), without=NO_QUEUES),
    Case("permutation, oversubscribed 4:1", across(8 * MIB), OVERSUBSCRIBED),
    Case("ring, 1 MiB", collective("ring", MIB)),
    Case("ring, 16 MiB", collective("ring", 16 * MIB)),
    Case("ring, 64 MiB", collective("ring", 64 * MIB)),
    Case("ring, 64 MiB, oversubscribed", collective("ring", 64 * MIB), OVERSUBSCRIBED),
    Case("ring on 4 channels, 64 MiB", collective("ring", 64 * MIB), ("scenarios[0].channels=4",)),
    Case("ring, one link at a quarter, 16 MiB", collective("ring", 16 * MIB),
         slow_link=("host-5/eth0", "leaf1", 0.25)),
    Case("tree, 1 MiB", collective("tree", MIB)),
    Case("tree, 32 MiB", collective("tree", 32 * MIB), without=TWO_HOSTS),
    Case("broadcast, 32 MiB", collective("broadcast", 32 * MIB)),
    Case("halving-doubling, 16 MiB", collective("halving-doubling", 16 * MIB), note=QUEUES,
         without=NO_QUEUES),
    Case("halving-doubling, oversubscribed, 16 MiB", collective("halving-doubling", 16 * MIB),
         OVERSUBSCRIBED, note=QUEUES, without=NO_QUEUES),
    Case("2D over hosts of 4, 4 MiB", collective("2d", 4 * MIB), FOUR_GPUS, note=FOUR_RINGS,
         without=ONE_RING),
    Case("2D over hosts of 4, 64 MiB", collective("2d", 64 * MIB), FOUR_GPUS),
    Case("all-to-all, 16 MiB", collective("alltoall", 16 * MIB)),
    Case("all-to-all, oversubscribed, 8 MiB", collective("alltoall", 8 * MIB), OVERSUBSCRIBED),
    Case("hierarchical all-to-all, 8 MiB", collective("hierarchical-alltoall", 8 * MIB),
         FOUR_GPUS, note=QUEUES, without=NO_QUEUES_OF_FOUR),
    Case("ring, dual port, layer 3+4, 32 MiB", collective("ring", 32 * MIB),
         (*DUAL_PORT, "hosts[0].nics[0].bond=lacp-3+4", "scenarios[0].sockets=4")),
    Case("ring, dual port, dynamic, 32 MiB", collective("ring", 32 * MIB),
         (*DUAL_PORT, "hosts[0].nics[0].bond=dynamic", "fabric.rate=100Gbps")),
    Case("ring, host cap of 10 Gb/s, 16 MiB", collective("ring", 16 * MIB),
         ("vpc.vnics=1", "vpc.host_rate=10Gbps")),
    Case("ring, host cap of 10 Gb/s with a burst, 16 MiB", collective("ring", 16 * MIB),
         ("vpc.vnics=1", "vpc.host_rate=10Gbps", "vpc.burst.rate=20Gbps",
          "vpc.burst.bucket=10MB")),
    Case("ring, flow cap of 5 Gb/s, 4 sockets, 16 MiB", collective("ring", 16 * MIB),
         ("vpc.vnics=1", "vpc.flow_rate=5Gbps", "scenarios[0].sockets=4")),
    Case("ring, 250,000 packets/s, 16 MiB", collective("ring", 16 * MIB),
         ("vpc.vnics=1", "vpc.packet_rate=250kpps")),
    Case("kernel TCP: incast of 8, 4 MiB each", pattern(range(1, 9), [0] * 8, 4 * MIB), TCP),
    Case("kernel TCP: random permutation, 16 MiB", random_pairs(16 * MIB), TCP),
    Case("kernel TCP: ring, 1 MiB", collective("ring", MIB), TCP),
    Case("kernel TCP: ring, 16 MiB", collective("ring", 16 * MIB), TCP),
    Case("kernel TCP: ring, 4 sockets, 64 MiB", collective("ring", 64 * MIB),
         (*TCP, "scenarios[0].sockets=4")),
    Case("kernel TCP: ring, BBR, 16 MiB", collective("ring", 16 * MIB),
         (*TCP, "scenarios[0].congestion=bbr")),
    Case("kernel TCP: tree, 32 MiB", collective("tree", 32 * MIB), TCP, without=TWO_HOSTS),
    Case("kernel TCP: halving-doubling, 16 MiB", collective("halving-doubling", 16 * MIB), TCP),
    Case("kernel TCP: all-to-all, 16 MiB", collective("alltoall", 16 * MIB), TCP),
    Case("kernel TCP: ring, flow cap of 5 Gb/s, 4 sockets, 16 MiB", collective("ring", 16 * MIB),
         (*TCP, "vpc.vnics=1", "vpc.flow_rate=5Gbps", "scenarios[0].sockets=4")),
)


def compare(case: Case) -> Compared:
    """Run a case at both fidelities."""
    cluster = Cluster(load(FILE, case.changes))
    flow, packet = (run_case(cluster, case, fidelity) for fidelity in ("flow", "packet"))
    without = None
    if case.without:
        changes = (*case.changes, *case.without)
        without = compare(case._replace(changes=changes, without=())).error
    return Compared(case, flow.times_s[-1], packet.times_s[-1], without, flow.corrections)


def run_case(cluster: Cluster, case: Case, fidelity: str, runs: int = 2) -> Ran:
    """Run a case's plan several times."""
    topology = cluster.topology
    env = wall_clock(fidelity, topology) or simpy.Environment()
    (scenario,) = topology.scenarios
    gpus = choose_gpus(cluster, range(cluster.hosts), cluster.gpus, affinity=scenario.affinity)
    plan = case.make(cluster.gpus, common_group(cluster, gpus))
    placement = place(cluster, gpus, channel_count(topology, scenario),
                      affinity=scenario.affinity).of(plan.name)
    network = make_network(fidelity, env, Site(
        cluster, load_stack(scenario.stack, topology.stacks), Style.of(scenario, topology),
        names_limits=False))
    if case.slow_link is not None:
        near, far, share = case.slow_link
        shares = np.ones(len(cluster.fabric.link_src))
        shares[cluster.fabric.links_between(near, far)] = share
        network.scale(shares)
    communicator, line = network.communicator(), Timeline(env, lambda _: None, "case")
    taken_s: list[float] = []
    with closing(network):
        for _ in range(runs):
            start_s = env.now
            env.run(env.process(communicator.run(plan, placement, lambda _: 0.0, line)))
            taken_s.append(env.now - start_s)
    return Ran(taken_s, network.notes, tuple(network.corrections))


def median_error(rows: Iterable[Compared]) -> float:
    """Median of the absolute relative errors."""
    return median(abs(row.error) for row in rows)


def unexplained(rows: Iterable[Compared]) -> list[Compared]:
    """Rows that are off by more than `WORST_TARGET` without a correction that holds, or a note."""
    return [row for row in rows
            if abs(row.error) > WORST_TARGET and not row.corrected and not row.case.note]


INTRODUCTION = """\
# Fidelities held against one another

Made by `python -m sim.validate fidelities --page docs/results/fidelities.md`; do not edit. Each row
is one collective or pattern, alone on the cluster of `sim/validation/fidelities.yaml` (sixteen
hosts under four leaves, 25 Gb/s, HARP or kernel TCP) with some values changed. It runs twice, and
the second run counts. The error is that of `flow` relative to `packet`: below zero where the fluid
is too fast. Nothing is fitted. [packet.md](../inside/packet.md) describes the model of `packet`.

A *correction* is `flow`'s own note on such an answer: a cause, found by a rule, and the time that
it adds. Its interval comes from other cases than these (`python -m sim.validate corrections`,
`sim/network/corrections.py`); `holds` marks a case that lies within.

Reasons are tested: `without it` is the error of the same case without its reason. Queues are
removed by ports of 100 Gb/s for each GPU and a fabric of four times that, which no network thread
fills; forks and joins by a tree of two hosts.
"""


def print_compared(rows: Sequence[Compared], console: Console) -> None:
    """Print a line a row, and what they amount to."""
    from rich.text import Text

    show(console, grid([
        text_column("case", [row.case.name for row in rows], align="left", folds=True),
        text_column("flow", [_us(row.flow_s) for row in rows]),
        text_column("packet", [_us(row.packet_s) for row in rows]),
        text_column("error", [percent(row.error, sign=True) for row in rows]),
        text_column("without its reason", [_without(row) for row in rows]),
        text_column("correction", [_held(row) for row in rows], align="left"),
    ]))
    show(console, Text(summary_line(rows)))


def write_compared(rows: Sequence[Compared], page: Path) -> None:
    """Write the page, whose date asks git for changed files, and then its plot beside it."""
    plot = page.with_suffix(".png")
    picture = f"![Flow over packet of every row]({plot.name})"
    lines = ["| case | flow | packet | error | correction, or why | without it |",
             "|---|---|---|---|---|---|"]
    lines += [f"| {row.case.name} | {_us(row.flow_s)} | {_us(row.packet_s)} | "
              f"{percent(row.error, sign=True)} | {_reason(row)} | {_without(row)} |"
              for row in rows]
    write_text(str(page), "\n".join([INTRODUCTION, dated(measured=False), summary_line(rows), "",
                                     picture, "", *lines, ""]))
    write_bytes(str(plot), draw_ratios([row.case.name for row in rows],
                                       [row.error for row in rows], WORST_TARGET, "flow / packet"))


def summary_line(rows: Sequence[Compared]) -> str:
    """Say in a sentence how near the two are, beside the targets."""
    near = sum(abs(row.error) <= WORST_TARGET for row in rows)
    corrected = sum(row.corrected and abs(row.error) > WORST_TARGET for row in rows)
    left = len(rows) - near - corrected
    others = f", and {left} {'says' if left == 1 else 'say'} why" if left else ""
    return (f"{len(rows)} cases: median error {median_error(rows):.1%} (target "
            f"{MEDIAN_TARGET:.0%}); {near} of them within {WORST_TARGET:.0%}, {corrected} more "
            f"where their corrections say{others}.")


def _held(row: Compared) -> str:
    if not row.corrections:
        return ""
    return "holds" if row.corrected else "does not hold"


def _reason(row: Compared) -> str:
    said = "; ".join(f"{each.name}: {interval.in_words()}"
                     for each, interval in zip(row.corrections, row.intervals, strict=True))
    return "; ".join(filter(None, (said, _held(row), row.case.note)))


def _without(row: Compared) -> str:
    return "" if row.without is None else percent(row.without, sign=True)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} us"
