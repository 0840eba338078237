"""Collectives by the order of ranks: bytes that cross spines, and completion.

A job has half of a cluster's hosts, drawn at random, as a scheduler hands them out. Their ranks
stand in the order of `harp.routing.affinity` ("near", what `order: near` of a job gives), in that
of the hosts' names as text, and in a random one (the mean and the best of the draws). For each the
simulator runs an all-reduce of 256 MiB by NCCL's ring and by its double binary tree at fidelity
flow, over a stack that uses its NICs' whole rate, with planned paths and with hashed ones (ECMP).
Bytes are those that leave a ToR upwards.

All-to-alls cross ToRs as much in any order, but not by any algorithm: over rails, half of 32 hosts
do one of 16 MiB directly, and hierarchically, in the host first and then on each rail.

Three fabrics of 64 hosts: a leaf-spine with a quarter of its hosts' rate upwards, a rail-optimised
one with four NICs a host and as little, and a three-tier Clos with half of it.
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import numpy as np
import yaml

from bench.rows import Row, by_id
from bench.subject import Subject
from harp.collectives.registry import make_plan
from harp.routing.affinity import endpoint_places, rank_order
from sim.answer.scenario import Settings
from sim.answer.timer import Timer
from sim.cluster.cluster import Cluster
from sim.cluster.placement import common_group, place
from sim.schema import load
from sim.schema.nccl_defaults import channel_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from bench.rows import Result
    from harp.collectives.collective_plan import Plan
    from sim.cluster.placement import Placement
    from sim.schema.scenario_keys import Scenario

    Ints = NDArray[np.int64]

NBYTES, ALLTOALL_NBYTES = 256 << 20, 16 << 20
SEED = 13
GPU = {"model": "A100", "effective": "140TFLOPS"}
FABRICS = {
    "leaf-spine": ({"template": "leaf-spine", "leaves": 8, "spines": 2}, 1),
    "rails": ({"template": "rail", "hosts_per_leaf": 8, "spines": 2}, 4),
    "three tiers": ({"template": "clos3", "pods": 4, "leaves": 4, "aggs": 2, "cores": 4}, 1),
}


class Outcome(NamedTuple):
    """One order: bytes that leave ToRs upwards, and seconds with planned and with hashed paths."""

    tor_bytes: float
    planned_s: float
    hashed_s: float


def build(fabric: dict[str, object], nics: int, hosts: int = 64) -> Cluster:
    """A cluster whose hosts have a GPU for each NIC."""
    host = {"name": "h", "count": hosts, "gpus": {"count": nics, **GPU},
            "nvlink": {"rate": "300GB/s", "latency": "3us"},
            "nics": [{"name": "eth", "count": nics, "rate": "100Gbps"}]}
    scenarios = [{"name": routing, "stack": "rdma", "routing": routing}
                 for routing in ("plan", "ecmp")]
    data = {"name": "order", "hosts": [host], "workload": {"model": "bert-large", "batch": 32},
            "fabric": {**fabric, "rate": "100Gbps", "latency": "1us"}, "scenarios": scenarios}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "order.yaml"
        path.write_text(yaml.safe_dump(data))
        return Cluster(load(path))


def orders(cluster: Cluster, hosts: Ints, rng: np.random.Generator,
           draws: int) -> Iterator[tuple[str, Ints]]:
    """Orders of the job's hosts, by name."""
    first_nic = np.searchsorted(cluster.fabric.endpoint_host, hosts)
    yield "near", hosts[rank_order(cluster.fabric, first_nic)]
    names = cluster.topology.host_names
    yield "lexical", np.array(sorted(hosts.tolist(), key=lambda host: names[host]))
    for _ in range(draws):
        yield "random", rng.permutation(hosts)


def tor_bytes(cluster: Cluster, plan: Plan, placement: Placement) -> float:
    """Bytes of a plan that climb above a ToR, all channels together."""
    tor = endpoint_places(cluster.fabric, cluster.endpoint)[:, -2]
    channels = placement.of(plan.name)
    total = 0.0
    for phase in plan.phases():
        for gpus in channels:
            far = tor[gpus[phase.src]] != tor[gpus[phase.dst]]
            far &= cluster.host[gpus[phase.src]] != cluster.host[gpus[phase.dst]]
            total += float(phase.bytes_per_edge[far].sum()) / len(channels)
    return total


def outcome(cluster: Cluster, hosts: Ints, algorithm: str, nbytes: int = NBYTES) -> Outcome:
    """Run one collective over the hosts in this order."""
    gpus = np.concatenate([np.flatnonzero(cluster.host == host) for host in hosts])
    plan = make_plan(algorithm, ranks=len(gpus), nbytes=nbytes, unit_bytes=4,
                     group=common_group(cluster, gpus), chunk_bytes=nbytes)
    seconds = {}
    for scenario in cluster.topology.scenarios:
        seconds[scenario.routing], crossed = _run(cluster, scenario, gpus, plan)
    return Outcome(crossed, seconds["plan"], seconds["ecmp"])


def _run(cluster: Cluster, scenario: Scenario, gpus: Ints, plan: Plan) -> tuple[float, float]:
    placement = place(cluster, gpus, channel_count(cluster.topology, scenario), affinity=True)
    stack = Settings().stack(cluster.topology, scenario.stack)
    timer = Timer(cluster, stack, scenario, placement)
    with closing(timer):
        return timer.seconds(plan), tor_bytes(cluster, plan, placement)


def compare(cluster: Cluster, algorithm: str, draws: int, seed: int = SEED) -> dict[str, Outcome]:
    """Outcome by order; of the random ones the mean and the best in each respect."""
    rng = np.random.default_rng(seed)
    hosts = np.sort(rng.choice(cluster.hosts, cluster.hosts // 2, replace=False))
    found: dict[str, list[Outcome]] = {}
    for name, order in orders(cluster, hosts, rng, draws):
        found.setdefault(name, []).append(outcome(cluster, order, algorithm))
    random = found.pop("random")
    return {**{name: one for name, (one,) in found.items()},
            "random": Outcome(*np.mean(random, axis=0).tolist()),
            "best random": Outcome(*np.min(random, axis=0).tolist())}


def compare_alltoalls(seed: int = SEED) -> dict[str, Outcome]:
    """Outcome by algorithm, on the fabric of rails."""
    cluster = build(*FABRICS["rails"], hosts=32)
    hosts = np.sort(np.random.default_rng(seed).choice(32, 16, replace=False))
    return {algorithm: outcome(cluster, hosts, algorithm, ALLTOALL_NBYTES)
            for algorithm in ("alltoall", "hierarchical-alltoall")}


ALGORITHMS = ("ring", "tree")
RAILS = "rails all-to-all"


def measure(rows: Sequence[Row], draws: int) -> Iterator[Result]:
    """Run collectives on the fabrics that are chosen."""
    for row in rows:
        for name, found in row.function(draws).items():
            yield {"id": f"{row.id} {name}", **found._asdict()}


def _of_fabric(name: str, algorithm: str, draws: int) -> dict[str, Outcome]:
    return compare(build(*FABRICS[name]), algorithm, draws)


def line(row: Result) -> str:
    """Write the figures of an order."""
    return (f"{row['id']:40}{row['tor_bytes'] / 1e9:16.2f}{row['planned_s'] * 1e3:14.1f}"
            f"{row['hashed_s'] * 1e3:11.1f}")


HEADER = (f"{'fabric, algorithm, order':40}{'above ToRs (GB)':>16}{'planned (ms)':>14}"
          f"{'ECMP (ms)':>11}")
ROWS = by_id((*(
    Row(f"{name} {algorithm}", f"all-reduce of 256 MiB by the {algorithm}, by order",
        partial(_of_fabric, name, algorithm), unit="ms", reference="random order")
    for name in FABRICS for algorithm in ALGORITHMS),
    Row(RAILS, "all-to-all of 16 MiB, direct and hierarchical", lambda _: compare_alltoalls(),
        unit="ms", reference="direct")))
SUBJECT = Subject(__doc__ or "", ROWS, measure, [
    click.Option(["--draws"], default=5, show_default=True, type=click.IntRange(1, 1000),
                 help="Random orders."),
], HEADER, line)
