"""Fidelity packet against closed forms of collectives and of a VPC's caps.

Each case runs as by `sim.run`, on the cluster of ``closed_forms.yaml`` with stacks that cost
nothing. The formulas take only the frame's sizes from the simulator; each row has its source.
Nothing is fitted. `sim.network.packet.reference_cases` has those of paths.
"""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from sim.cluster.cluster import Cluster
from sim.records.reference_rows import JUMBO_HARP, JUMBO_TCP, Row, Wire, time_row
from sim.schema import load
from sim.validation.fidelities import KIB, MIB, Case, collective, pattern, run_case

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sim.validation.fidelities import Maker

FILE = Path(__file__).with_suffix(".yaml")
RATE = 25e9 / 8
HOP_S = 1e-6
"""Latency of a link; every path has two."""
STACKS = (("HARP", JUMBO_HARP, ()),
          ("kernel TCP", JUMBO_TCP, ("scenarios[0].stack=free-tcp",)))
THAKUR = "Thakur, Rabenseifner and Gropp, IJHPCA 2005"
LE_BOUDEC = "token bucket; Le Boudec and Thiran, Network Calculus, section 1.2"
HOCKNEY = "bytes by rate; latency and one frame a link (Hockney, Parallel Computing 1994)"


def collective_rows() -> list[Row]:
    """All rows."""
    return [*run_collectives(), *pass_caps()]


def run_collectives() -> Iterator[Row]:
    """Patterns and collectives on sixteen hosts, each alone."""
    for stack, wire, chosen in STACKS:
        alpha_s = 2 * (HOP_S + wire.whole / RATE)
        forms: tuple[tuple[str, str, Maker, float, str], ...] = (
            ("incast of 8, 4 MiB each", "alpha + n S / R", pattern(range(1, 9), [0] * 8, 4 * MIB),
             alpha_s + 8 * wire.on_line(4 * MIB) / RATE, HOCKNEY),
            ("permutation, 16 MiB", "alpha + S / R",
             pattern(range(16), [(n + 5) % 16 for n in range(16)], 16 * MIB),
             alpha_s + wire.on_line(16 * MIB) / RATE, HOCKNEY),
            ("ring, 64 MiB", "2 (n - 1) / n S / R", collective("ring", 64 * MIB),
             wire.on_line(64 * MIB) * 30 / 16 / RATE, THAKUR),
            ("ring, 64 KiB", "2 (n - 1) (alpha + S / n R)", collective("ring", 64 * KIB),
             30 * short_s(wire, 4 * KIB), THAKUR),
            *(("halving-doubling, " + size, "2 lg n alpha, 2 (n - 1) / n S / R",
               collective("halving-doubling", nbytes),
               2 * sum(short_s(wire, nbytes >> step) for step in range(1, 5)), THAKUR)
              for size, nbytes in (("64 KiB", 64 * KIB), ("16 MiB", 16 * MIB))),
            ("all-to-all, 16 MiB", "alpha + (n - 1) / n S / R", collective("alltoall", 16 * MIB),
             alpha_s + 15 * wire.on_line(MIB) / RATE, THAKUR))
        for case, form, maker, wanted_s, source in forms:
            yield time_row(f"{stack}: {case}", form, run_plan(maker, chosen), wanted_s, source)


def short_s(wire: Wire, nbytes: int) -> float:
    """A message alone: its bytes on one link, its first frame on the other, both latencies."""
    first = min(nbytes, wire.payload) + wire.headers
    return 2 * HOP_S + (wire.on_line(nbytes) + first) / RATE


def run_plan(maker: Maker, changes: Sequence[str], runs: int = 2) -> float:
    """Time of a plan's last run on the cluster of the file; the first one opens connections."""
    cluster = Cluster(load(FILE, changes))
    return run_case(cluster, Case("closed form", maker), "packet", runs).times_s[-1]


def pass_caps() -> Iterator[Row]:
    """Rate of a VPC's caps between two hosts; they count packets with headers."""
    nbytes, cap_bps, burst_bps, bucket = 32 * MIB, 5e9, 20e9, 8_000_000
    for stack, wire, chosen in STACKS:
        capped = wire.on_line(nbytes)
        spill_s = bucket / (burst_bps - cap_bps) * 8
        for case, form, changes, wanted_s in (
                ("host cap of 5 Gb/s", "S / cap", ("vpc.host_rate=5Gbps",), 8 * capped / cap_bps),
                ("vNIC cap of 5 Gb/s", "S / cap", ("vpc.vnic_rate=5Gbps",), 8 * capped / cap_bps),
                ("2 sockets of 2.5 Gb/s", "S / (2 cap)",
                 ("vpc.flow_rate=2.5Gbps", "scenarios[0].sockets=2"), 8 * capped / cap_bps),
                ("100,000 packets/s", "frames by rate", ("vpc.packet_rate=100kpps",),
                 ceil(nbytes / wire.payload) / 1e5),
                ("5 Gb/s, bucket of 8 MB", "(S - b) / r, b = bucket",
                 ("vpc.host_rate=5Gbps", "vpc.burst.rate=20Gbps", "vpc.burst.bucket=8MB"),
                 spill_s + (capped - burst_bps / 8 * spill_s) / (cap_bps / 8))):
            yield time_row(f"{stack}: {case}", form, run_plan(
                pattern([0], [1], nbytes), (*chosen, "vpc.vnics=1", *changes), runs=1), wanted_s,
                LE_BOUDEC)
