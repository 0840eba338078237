"""Planned source ports on the real stack: hashed and planned ones through kernel routers.

Namespaces make a leaf-spine of Linux routers, which hash addresses and ports. tbf gives every cable
20 Mb/s, a thousandth of the rate that it stands for, and engines have a clock that is slower by as
much, as in fidelity lab. Each host of one leaf sends 8 MB to one of the other, all at once, by HARP
engines over UDP: as many flows as uplinks, so no two need share one. In turn the source ports are
any (the engine's own, and switches hash them), those that `harp plan` finds by the hash, and those
that it finds by maps of `harp probe`, which knows no hash; then the same with as much sent back,
and by two jobs of half of the flows each, planned together and each alone. Lines are the median,
least and largest completion by the wall clock, and the fullest link's flows. Root.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, NamedTuple

import click
import numpy as np

from bench.rows import Row, by_id
from bench.subject import Subject
from harp.net import Engine
from harp.net.traceroute import trace
from harp.routing import discovered
from harp.routing.jobs import Job, PortRange, Ranks, Wanted, plan_job, plan_jobs
from harp.routing.templates import Endpoints, SwitchHash, Wires, leaf_spine
from lab.wiring import Wiring

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.rows import Result
    from harp.routing.deployment import Deployment
    from harp.routing.fabric import Fabric

SLOWER = 1000
"""Factor between the lab and the fabric that it stands for. With engines' usual clock at 20 Mb/s
each packet has an ACK of its own, and ACKs take a tenth of the links."""
BPS = 20e6
MIB = 8
"""Of each flow, by default."""
OVERHEAD = 1514 / 1424
"""A packet as tbf counts it over the payload of HARP's frame in it, nearly."""
PATIENCE_S = 120
PROBES_OF_A_SPINE = 8
"""Source ports that are probed for each, from the first that plans may use on."""
PROBE_S = 10.0
DRAWS = 5


class Run(NamedTuple):
    """One run of all flows: completion, and demand over capacity of the fullest link."""

    seconds: float
    max_load: float


def make_fabric(hosts: int, spines: int) -> Fabric:
    """Two leaves under ``spines``, hashed as Linux does."""
    wires = Wires(BPS * SLOWER, 1e-6, SwitchHash("linux", seed=5))
    return leaf_spine(Endpoints.uniform(hosts, bps=BPS * SLOWER), leaves=2, spines=spines,
                      wires=wires)


def run_flows(wiring: Wiring, fabric: Fabric, plan: Deployment, mib: int, *,
              planned: bool) -> Run:
    """Let every rank send its message at once."""
    message = bytes(mib << 20)
    with ExitStack() as stack:
        engines = []
        for rank in plan.ranks:
            address = rank.listen[0] if planned else rank.listen[0].partition(":")[0]
            with wiring.hosts[rank.rank].entered():
                engines.append(stack.enter_context(
                    Engine("udp", address=address, frames=512, slower=SLOWER)))
        pairs, ports = [], []
        for flow in plan.flows:
            listener = engines[flow.receiver].listen()
            with wiring.hosts[flow.sender].entered():
                near = engines[flow.sender].connect(
                    listener.handle, timeout=PATIENCE_S,
                    flows=plan.flows_of(flow.sender) if planned else ())
            pairs.append((near, listener.accept(timeout=PATIENCE_S)))
            ports.append([int(end.rpartition(":")[2]) for end in (near.paths[0].local,
                                                                  near.paths[0].remote)])
        began_s = time.perf_counter()
        posted = [far.post(bytearray(len(message))) for _, far in pairs]
        for near, _ in pairs:
            near.send(message)
        for one in posted:
            one.wait(PATIENCE_S)
        seconds = time.perf_counter() - began_s
    return Run(seconds, _max_load(fabric, plan, np.array(ports)))


def _max_load(fabric: Fabric, plan: Deployment, ports: np.ndarray) -> float:
    ends = np.array([(flow.sender, flow.receiver) for flow in plan.flows])
    _, links = fabric.route(fabric.flows(*ends.T, *ports.T))
    return float(np.bincount(links).max())


def probe(wiring: Wiring, fabric: Fabric, pairs: list[tuple[int, int]]) -> discovered.Map:
    """Discover the paths of all pairs by probes from each sender, at once."""
    first = PortRange().first_source
    spines = sum(name.startswith("spine") for name in fabric.switches)
    ports = [*range(first, first + PROBES_OF_A_SPINE * spines)]

    def paths(pair: tuple[int, int]) -> list[discovered.DiscoveredPath]:
        source, target = map(wiring.address, pair)
        with wiring.hosts[pair[0]].entered():
            found = trace(source, (target, PortRange().listen), ports, budget_s=PROBE_S)
        at = f"{target}:{PortRange().listen}"
        return [discovered.DiscoveredPath(source, at, routers, tuple(some))
                for routers, some in found.classes.items() if routers]

    with ThreadPoolExecutor(len(pairs)) as pool:
        found = [path for some in pool.map(paths, pairs) for path in some]
    routers = {str(IPv4Address("100.64.0.0") + link): fabric.switches[near]
               for link, near in enumerate(fabric.link_src.tolist()) if near < len(fabric.switches)}
    return discovered.Map(found, routers)


def compare(fabric: Fabric, wiring: Wiring, pairs: list[tuple[int, int]], known: discovered.Map,
            draws: int, mib: int) -> dict[str, float]:
    """Completions by hashed, planned, and probed and planned ports, in turn."""
    ranks, wanted = _ranks(fabric, [*range(len(fabric.endpoints))]), Wanted(pairs)
    planned = plan_job(fabric, ranks, wanted)
    row = _in_turn(fabric, wiring, {
        "hashed": planned, "planned": planned,
        "probed": plan_job(fabric, ranks, wanted, known)}, draws, mib)
    for kind in ("planned", "probed"):
        row |= {f"{kind}_gain": row["hashed_s"] / row[f"{kind}_s"],
                f"{kind}_of_bound": row["bound_s"] / row[f"{kind}_s"]}
    return row


def compare_jobs(fabric: Fabric, wiring: Wiring, draws: int, mib: int) -> dict[str, float]:
    """Completions of two jobs: flows hashed, planned each alone, and planned together."""
    quarter = len(fabric.endpoints) // 4
    hosts = [[*range(first, first + quarter), *range(first + 2 * quarter, first + 3 * quarter)]
             for first in (0, quarter)]
    jobs = [Job(_ranks(fabric, own), Wanted([(rank, rank + quarter) for rank in range(quarter)]))
            for own in hosts]
    together = _joined(plan_jobs(fabric, jobs), hosts)
    return _in_turn(fabric, wiring, {
        "hashed": together, "alone": _joined([plan_job(fabric, *job) for job in jobs], hosts),
        "together": together}, draws, mib)


def _ranks(fabric: Fabric, hosts: list[int]) -> Ranks:
    each = np.array(hosts)
    return Ranks(each, each, np.ones_like(each),
                 tuple(f"h-{host}" for host in range(len(fabric.endpoints))))


def _joined(plans: list[Deployment], hosts: list[list[int]]) -> Deployment:
    """One plan of jobs that share no host; ranks get their hosts' numbers."""
    ranks = sorted((replace(rank, rank=own[rank.rank]) for plan, own in zip(plans, hosts,
                                                                           strict=True)
                    for rank in plan.ranks), key=lambda rank: rank.rank)
    flows = tuple(replace(flow, sender=own[flow.sender], receiver=own[flow.receiver])
                  for plan, own in zip(plans, hosts, strict=True) for flow in plan.flows)
    return replace(plans[0], ranks=tuple(ranks), flows=flows)


def _in_turn(fabric: Fabric, wiring: Wiring, plans: dict[str, Deployment],
             draws: int, mib: int) -> dict[str, float]:
    runs: dict[str, list[Run]] = {kind: [] for kind in plans}
    for _ in range(draws):
        for kind, made in runs.items():
            made.append(run_flows(wiring, fabric, plans[kind], mib, planned=kind != "hashed"))
    row = {"bound_s": (mib << 20) * 8 * OVERHEAD / BPS}
    for kind, made in runs.items():
        row |= {f"{kind}_s": statistics.median(run.seconds for run in made),
                f"{kind}_least_s": min(made).seconds, f"{kind}_most_s": max(made).seconds,
                f"{kind}_load": statistics.mean(run.max_load for run in made)}
    return row


TRAFFICS = ("one way", "both ways", "two jobs")


def measure_traffics(names: Sequence[str] = TRAFFICS, *, hosts: int = 8, spines: int = 4,
                     draws: int = DRAWS, mib: int = MIB) -> Iterator[tuple[str, dict[str, float]]]:
    """Measure flows one way, both ways, and of two jobs, over the same namespaces."""
    fabric, half = make_fabric(hosts, spines), hosts // 2
    forth = [(rank, rank + half) for rank in range(half)]
    back = [(to, rank) for rank, to in forth]
    with closing(Wiring(fabric, 1 / SLOWER, 1500)) as wiring:
        pairs = {"one way": forth, "both ways": [*forth, *back]}
        known = probe(wiring, fabric, [*forth, *back]) if {*pairs} & {*names} else None
        for name in names:
            yield name, (compare_jobs(fabric, wiring, draws, mib)
                         if known is None or name not in pairs
                         else compare(fabric, wiring, pairs[name], known, draws, mib))


def measure_jobs(draws: int) -> dict[str, float]:
    """The row of two jobs alone."""
    fabric = make_fabric(8, 4)
    with closing(Wiring(fabric, 1 / SLOWER, 1500)) as wiring:
        return compare_jobs(fabric, wiring, draws, mib=2)


def measure(rows: Sequence[Row], **options: int) -> Iterator[Result]:
    """Measure the traffics that are chosen."""
    for name, made in measure_traffics([row.id for row in rows], **options):
        yield {"id": name, **options, **made}


def line(row: Result) -> str:
    """Return a line for each kind of source ports."""
    return "\n".join((
        f"{row['id']}: {row['hosts']} hosts, {row['spines']} spines, {row['draws']} runs each; "
        f"without collisions {row['bound_s']:.3f} s", *(
            f"  {kind:8} median {row[f'{kind}_s']:.3f} s ({row[f'{kind}_least_s']:.3f} "
            f"to {row[f'{kind}_most_s']:.3f}), of the bound "
            f"{row['bound_s'] / row[f'{kind}_s']:.2f}, fullest link "
            f"{row[f'{kind}_load']:.2f} flows" for kind in (
                key[:-5] for key in row if key.endswith("_load")))))


ROWS = by_id(Row(name, f"{name}: completion by hashed and planned ports", measure_traffics,
                 unit="s", reference="hashed ports") for name in TRAFFICS)
SUBJECT = Subject(__doc__ or "", ROWS, measure, [
    click.Option(["--hosts"], default=8, show_default=True, help="Half of them on each leaf."),
    click.Option(["--spines"], default=4, show_default=True),
    click.Option(["--draws"], default=DRAWS, show_default=True, help="Runs of each kind."),
    click.Option(["--mib"], default=MIB, show_default=True, help="Of each flow."),
], "", line)
