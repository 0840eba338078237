"""How often `harp diagnose` is right where nobody chose the case: drawn jobs, places, and faults.

    python bench/diagnose/drawn.py [--fidelity packet|lab] [--hosts 4,6,10] [--seeds 101-120]
                                   [--only TEXT] [--json]

Packets in virtual time (bench/diagnose/packet_job.py), the same on every machine; or, as root, the real
stack between namespaces of four hosts (bench/diagnose/drawn_lab.py), five seconds a case. For each
size and seed: every fault of bench/diagnose/strikes.py alone, two at once on two hosts, and a
healthy job. Loads are drawn as well: who sends to whom, how much, in bursts, and with others' small
messages beside. The limits of harp/tools/diagnosis/symptoms.py were set on bench/diagnose/named_faults.py and on
packets of seeds below 100 of this one. A verdict is right if all that struck is named and nothing
else. A rank that computes too long is not among the faults: ends of packets have no application
that posts late.
"""

from __future__ import annotations

import json
import random
import sys
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple


import click
from bench.diagnose.strikes import FAULTS, PORTS, Load, is_right, link_slow, tor_lost
from bench.diagnose.packet_job import RATE_BPS as PACKET_BPS
from bench.diagnose.packet_job import PacketJob, PacketLab

from harp.cli.diagnose.suspects import diagnose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.diagnose.strikes import Strike

    from harp.cli.diagnose.suspects import Suspect

WARM_S = 0.5
SETTLE_S = 0.3
PEERS = 3
"""That a host sends to, at least: fewer do not tell which end of a way it is."""
TWO, HEALTHY = "two faults at once", "healthy"
KINDS = (*(fault.__name__.replace("_", " ") for fault in FAULTS), TWO, HEALTHY)


class Case(NamedTuple):
    """A job, and what strikes it."""

    kind: str
    hosts: int
    seed: int
    loads: tuple[Load, ...]
    strikes: tuple[Strike, ...]


class Row(NamedTuple):
    """What was said of a case."""

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


def draw_loads(hosts: int, chance: random.Random, rate_bps: float, *,
               full: bool) -> tuple[Load, ...]:
    """Draw who sends to whom, over ports of a rate.

    Where a rate is what is at fault, ports have to be ``full``.
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
    if tor_lost in faults:  # what else is at fault there, nobody can see
        ports[1:] = [1 - port for port in ports[:1] * (len(ports) - 1)]
    strikes = [fault(host, port, chance)
               for fault, host, port in zip(faults, struck, ports, strict=True)]
    full = link_slow in faults
    return Case(kind, hosts, seed, draw_loads(hosts, chance, rate_bps, full=full), tuple(strikes))


def run_in_lab(kind: str, seed: int) -> Row:
    """Draw a case, and let it happen to the real stack."""
    from bench.diagnose.drawn_lab import strike_and_ask
    from bench.diagnose.lab_job import HOSTS, RATE_BPS

    case = draw_case(kind, len(HOSTS), seed, RATE_BPS)
    suspects = strike_and_ask(case.loads, case.strikes)
    return Row(case, is_right(case.strikes, suspects), suspects)


def run_case(case: Case) -> Row:
    """Let it happen in virtual time, and ask who it was."""
    lab = PacketLab(case.hosts, case.seed)
    job = PacketJob(lab, case.loads)
    job.run(WARM_S)
    for strike in case.strikes:
        strike.do(lab)

    def again(now_s: float) -> None:
        for strike in case.strikes:
            strike.again(lab, now_s)
    job.run(SETTLE_S, again)
    suspects = diagnose(job.reports(again))
    return Row(case, is_right(case.strikes, suspects), suspects)


def _summary(rows: Sequence[Row]) -> str:
    sizes = sorted({row.case.hosts for row in rows})
    lines = ["| what happens | " + " | ".join(f"{size} hosts" for size in sizes) + " |",
             "|---|" + "---|" * len(sizes)]
    for kind in dict.fromkeys(row.case.kind for row in rows):
        cells = []
        for size in sizes:
            here = [row.right for row in rows if (row.case.kind, row.case.hosts) == (kind, size)]
            cells.append(f"{sum(here)} of {len(here)}")
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


@click.command()
@click.option("--fidelity", type=click.Choice(["packet", "lab"]), default="packet",
              show_default=True)
@click.option("--hosts", default="4,6,10", show_default=True,
              help="Sizes of clusters; the lab's has four hosts.")
@click.option("--seeds", default="101-120", show_default=True)
@click.option("--only", help="Kinds that have this text.")
@click.option("--json", "as_json", is_flag=True)
def main(fidelity: str, hosts: str, seeds: str, only: str | None, *, as_json: bool) -> None:
    """Print how many of each kind are named right, and what was said where not."""
    first, _, last = seeds.partition("-")
    drawn = [(kind, seed) for kind in KINDS if not only or only in kind
             for seed in range(int(first), int(last or first) + 1)]
    rows = ([run_in_lab(kind, seed) for kind, seed in drawn] if fidelity == "lab" else
            [run_case(draw_case(kind, int(size), seed)) for kind, seed in drawn
             for size in hosts.split(",")])
    if as_json:
        click.echo(json.dumps([{"kind": row.case.kind, "hosts": row.case.hosts,
                                "seed": row.case.seed, "right": row.right,
                                "said": [one.document() for one in row.suspects]}
                               for row in rows], indent=2))
        return
    click.echo(_summary(rows))
    for row in rows:
        if not row.right:
            click.echo(f"wrong: {row.sentence}")


if __name__ == "__main__":
    main()
