"""`harp diagnose` on drawn jobs, places and faults.

Packets in virtual time (packet_job.py), the same on every machine; or, as root, the real stack
between namespaces of four hosts (drawn_lab.py), five seconds a case. For each size and seed: every
fault of strikes.py alone, two at once on two hosts, and a healthy job. Loads are drawn as well:
pairs, sizes, bursts, and small messages beside. The limits of `harp diagnose` were set on the
subject `diagnose` and on packets of seeds below 100 of this one. A case is right if the command
names all struck parts and nothing else. A rank that computes too long is not among the faults: ends
of packets have no application that posts late.
"""

from __future__ import annotations

import random
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, NamedTuple

import click

from bench.diagnose.packet_job import RATE_BPS as PACKET_BPS
from bench.diagnose.packet_job import PacketJob, PacketLab
from bench.diagnose.strikes import FAULTS, PORTS, Load, is_right, link_slow, tor_lost
from bench.rows import Row, by_id
from bench.subject import Subject
from harp.cli.diagnose.suspects import find_suspects

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.diagnose.strikes import Strike
    from bench.rows import Result
    from harp.cli.diagnose.suspects import Suspect

WARM_S = 0.5
SETTLE_S = 0.3
PEERS = 3
"""Least number of targets of a host: fewer do not show which end of a path is at fault."""
TWO, HEALTHY = "two faults at once", "healthy"
KINDS = (*(fault.__name__.replace("_", " ") for fault in FAULTS), TWO, HEALTHY)


class Case(NamedTuple):
    """A job, and the faults that strike it."""

    kind: str
    hosts: int
    seed: int
    loads: tuple[Load, ...]
    strikes: tuple[Strike, ...]


class Verdict(NamedTuple):
    """The suspects of a case, judged."""

    case: Case
    right: bool
    suspects: list[Suspect]

    @property
    def sentence(self) -> str:
        """For people."""
        struck = " and ".join(f"{strike.text} at {strike.said.name}" for strike in
                              self.case.strikes) or "nothing"
        said = "; ".join(suspect.sentence for suspect in self.suspects) or "nothing"
        return f"{self.case.hosts} hosts, seed {self.case.seed}: {struck}. Said: {said}"

    def to_json(self) -> dict[str, object]:
        """Return it for --json."""
        return {"kind": self.case.kind, "hosts": self.case.hosts, "seed": self.case.seed,
                "right": self.right, "sentence": self.sentence,
                "said": [one.document() for one in self.suspects]}


def draw_loads(hosts: int, chance: random.Random, rate_bps: float, *,
               full: bool) -> tuple[Load, ...]:
    """Draw the loads between hosts, over ports of a rate.

    A fault of a rate needs ``full`` ports.
    """
    least = min(hosts - 1, PEERS)
    reach = chance.randint(least, hosts - 1)
    pairs = [(a, b) for a, b in permutations(range(hosts), 2) if (b - a) % hosts <= reach]
    size = chance.choice([4096, 16 << 10, 64 << 10, 256 << 10])
    kind = "full" if full else chance.choice(["full", "partly", "bursts", "beside"])
    loads = [Load(a, b, max(size, 64 << 10) if full else size) for a, b in pairs]
    if kind == "partly":
        share = chance.uniform(0.05, 0.4) / reach
        loads = [load._replace(most_bps=2 * rate_bps * share) for load in loads]
    elif kind == "bursts":
        loads = [load._replace(on_s=chance.uniform(0.05, 0.2), off_s=chance.uniform(0.05, 0.2))
                 for load in loads]
    elif kind == "beside":
        loads += [Load(*chance.choice(pairs), 2048, rate_bps / 50) for _ in range(hosts)]
    return tuple(loads)


def draw_case(kind: str, hosts: int, seed: int, rate_bps: float = PACKET_BPS) -> Case:
    """Draw a case of a kind."""
    chance = random.Random(f"{kind} {hosts} {seed}")
    known = dict(zip(KINDS, FAULTS, strict=False))
    faults = [] if kind == HEALTHY else chance.sample(FAULTS, 2) if kind == TWO else [known[kind]]
    struck = chance.sample(range(hosts), len(faults))
    ports = [chance.choice(PORTS) for _ in faults]
    if tor_lost in faults:  # its other faults are invisible
        ports[1:] = [1 - port for port in ports[:1] * (len(ports) - 1)]
    strikes = [fault(host, port, chance)
               for fault, host, port in zip(faults, struck, ports, strict=True)]
    full = link_slow in faults
    return Case(kind, hosts, seed, draw_loads(hosts, chance, rate_bps, full=full), tuple(strikes))


def run_in_lab(kind: str, seed: int) -> Verdict:
    """Draw a case, and run it on the real stack."""
    from bench.diagnose.drawn_lab import strike_and_ask
    from bench.diagnose.lab_job import HOSTS, RATE_BPS

    case = draw_case(kind, len(HOSTS), seed, RATE_BPS)
    suspects = strike_and_ask(case.loads, case.strikes)
    return Verdict(case, is_right(case.strikes, suspects), suspects)


def run_case(case: Case) -> Verdict:
    """Run a case in virtual time, and diagnose it."""
    lab = PacketLab(case.hosts, case.seed)
    job = PacketJob(lab, case.loads)
    job.run(WARM_S)
    for strike in case.strikes:
        strike.do(lab)

    def again(now_s: float) -> None:
        for strike in case.strikes:
            strike.again(lab, now_s)
    job.run(SETTLE_S, again)
    suspects = find_suspects(job.reports(again))
    return Verdict(case, is_right(case.strikes, suspects), suspects)


def measure(rows: Sequence[Row], fidelity: str, hosts: str, seeds: str) -> Iterator[Result]:
    """Run all cases of the kinds that are chosen."""
    first, _, last = seeds.partition("-")
    for row in rows:
        drawn = range(int(first), int(last or first) + 1)
        made = [row.function(seed) for seed in drawn] if fidelity == "lab" else [
            run_case(draw_case(row.id, int(size), seed)) for seed in drawn
            for size in hosts.split(",")]
        yield {"id": row.id, "ok": all(one.right for one in made),
               "cases": [one.to_json() for one in made]}


def line(row: Result) -> str:
    """Write how many cases of a kind are right, by size."""
    sizes = sorted({case["hosts"] for case in row["cases"]})
    cells = []
    for size in sizes:
        here = [case["right"] for case in row["cases"] if case["hosts"] == size]
        cells.append(f"{sum(here)} of {len(here)} ({size} hosts)")
    return f"| {row['id']} | {' | '.join(cells)} |"


def footer(results: Sequence[Result]) -> str:
    """Name the cases that are wrong."""
    return "\n".join(f"wrong: {case['sentence']}" for result in results
                     for case in result["cases"] if not case["right"])


ROWS = by_id(Row(kind, "drawn cases that are right", partial(run_in_lab, kind),
                 target="all struck parts, and nothing else") for kind in KINDS)
SUBJECT = Subject(__doc__ or "", ROWS, measure, [
    click.Option(["--fidelity"], type=click.Choice(["packet", "lab"]), default="packet",
                 show_default=True),
    click.Option(["--hosts"], default="4,6,10", show_default=True,
                 help="Sizes of clusters; the lab's has four hosts."),
    click.Option(["--seeds"], default="101-120", show_default=True),
], "| what happens | right |\n|---|---|", line, footer, lambda result: result["cases"])
