"""Features at each fidelity, beside their references: the table below the scenes.

Two ports and self-healing are figures of the scenes. Hash routing and affinity are a ring
all-reduce of 4 MiB over eight hosts of two leaves, by HARP's stack: as a fluid, packet by packet,
and by real engines over kernel routers, at a thousandth of the rates (`lab`):

- *hash routing*: every host's neighbours are under the other leaf, four flows each way under four
  spines; by any source ports (ECMP), and by planned ones;
- *affinity*: under two spines, half of the hosts' rate, by planned ports; hosts in that order, and
  in the one of their places;
- *several jobs*: two rings of four hosts each, two under either leaf, planned together, and each as
  if it were alone (planned_paths.py in the lab, else cases.py).

A figure is the reference's time by ours, the median of some orders: 2 is twice as fast.
"""

from __future__ import annotations

import statistics
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import yaml

from bench.routing.cases import Case, alone, flows_of, make_ring, together
from bench.routing.max_min import flow_ms
from bench.routing.packet_time import completion_ms
from bench.tccl.scenes import FAULTS, TWO_PORTS
from harp.collectives.registry import make_plan
from harp.routing.templates import Endpoints, leaf_spine
from sim.answer.scenario import Settings
from sim.answer.timer import Timer
from sim.cluster.cluster import Cluster
from sim.cluster.placement import place
from sim.schema import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from bench.tccl.judge import Outcome

    Ints = NDArray[np.int64]

HOSTS = 8
NBYTES = 4 << 20
ORDERS = {"flow": 9, "packet": 9, "lab": 3}
NONE = "-"


def scattered(seed: int) -> Ints:
    """An order of hosts in which each has its neighbours under the other leaf."""
    rng, half = np.random.default_rng(seed), HOSTS // 2
    return np.column_stack([rng.permutation(half), half + rng.permutation(half)]).reshape(-1)


def _cluster(spines: int) -> Cluster:
    host = {"name": "h", "count": HOSTS,
            "gpus": {"count": 1, "model": "V100", "effective": "10TFLOPS"},
            "nvlink": {"rate": "100GB/s", "latency": "1us"},
            "nics": [{"name": "eth", "rate": "25Gbps"}]}
    data = {"name": "tccl", "hosts": [host], "lab": {"scale": 0.001},
            "fabric": {"template": "leaf-spine", "leaves": 2, "spines": spines, "rate": "25Gbps",
                       "hash": {"function": "linux"}},
            "workload": {"model": "vgg16", "batch": 32},
            "scenarios": [{"name": routing, "stack": "harp", "routing": routing, "channels": 1}
                          for routing in ("plan", "ecmp")]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tccl.yaml"
        path.write_text(yaml.safe_dump(data))
        return Cluster(load(path))


def ring_seconds(fidelity: str, spines: int, routing: str, order: Ints) -> float:
    """Time of a ring over hosts in this order."""
    cluster = _cluster(spines)
    (scenario,) = (one for one in cluster.topology.scenarios if one.routing == routing)
    plan = make_plan("ring", ranks=HOSTS, nbytes=NBYTES, unit_bytes=4, group=1)
    placement = place(cluster, order, 1, affinity=False)
    stack = Settings().stack(cluster.topology, scenario.stack)
    with closing(Timer(cluster, stack, scenario, placement, fidelity=fidelity)) as timer:
        return timer.seconds(plan)


def routing_gain(fidelity: str) -> str:
    """Time by hashed ports over time by planned ones."""
    return _times(ring_seconds(fidelity, 4, "ecmp", order)
                  / ring_seconds(fidelity, 4, "plan", order)
                  for order in map(scattered, range(ORDERS[fidelity])))


def affinity_gain(fidelity: str) -> str:
    """Time in a random order over time in the order of hosts' places."""
    near = ring_seconds(fidelity, 2, "plan", np.arange(HOSTS))
    return _times(ring_seconds(fidelity, 2, "plan", scattered(seed)) / near
                  for seed in range(ORDERS[fidelity]))


def jobs_gain(fidelity: str) -> str:
    """Time of two jobs that are planned each alone, over their time planned together."""
    if fidelity == "lab":
        from bench.routing.planned_paths import measure_jobs
        found = measure_jobs(ORDERS[fidelity])
        return _times([found["alone_s"] / found["together_s"]])
    fabric = leaf_spine(Endpoints.uniform(HOSTS), leaves=2, spines=4)
    run = flow_ms if fidelity == "flow" else completion_ms
    cases = [Case("two", fabric, [make_ring(fabric, order[:HOSTS // 2]),
                                  make_ring(fabric, order[HOSTS // 2:])])
             for order in map(scattered, range(ORDERS[fidelity]))]
    return _times(run(fabric, flows_of(case, alone(case)), NBYTES)
                  / run(fabric, flows_of(case, together(case)), NBYTES) for case in cases)


def _times(gains: Iterable[float]) -> str:
    return f"{statistics.median(gains):.2f}x"


def ports_share(rows: Sequence[Outcome]) -> str:
    """The least share of what remained of two ports; TCP's in brackets."""
    mine = [row for row in rows if row.scene in {scene.name for scene in TWO_PORTS}]
    if not mine:
        return NONE
    least = f"{min(row.harp.share for row in mine):.2f}"
    tcp = [row.tcp.share for row in mine if row.tcp]
    return f"{least} ({min(tcp):.2f})" if tcp else least


def faults_met(rows: Sequence[Outcome]) -> str:
    """Faults after which all targets were met; TCP's in brackets."""
    mine = [row for row in rows if row.scene in {scene.name for scene in FAULTS}]
    if not mine:
        return NONE
    good = f"{sum(row.good for row in mine)} of {len(mine)}"
    tcp = [row._replace(harp=row.tcp) for row in mine if row.tcp]
    return f"{good} ({sum(row.good for row in tcp)})" if tcp else good


FEATURES: dict[str, tuple[str, Callable[[str, Sequence[Outcome]], str]]] = {
    "two ports: least share of what remains": (
        "TCP hashed by LACP", lambda _, rows: ports_share(rows)),
    "hash routing: ring across leaves": ("ECMP", lambda fidelity, _: routing_gain(fidelity)),
    "affinity: ring, uplinks 2:1": ("random order", lambda fidelity, _: affinity_gain(fidelity)),
    "several jobs: two rings, one plan": ("a plan each", lambda fidelity, _: jobs_gain(fidelity)),
    "self-healing: faults healed in 100 ms": ("kernel TCP", lambda _, rows: faults_met(rows))}
"""By name: the reference, and the figure of a fidelity, of the outcomes of its scenes."""


def feature(name: str, fidelity: str, outcomes: Sequence[Outcome]) -> str:
    """Measure a feature at a fidelity."""
    return FEATURES[name][1](fidelity, outcomes)


def table(rows: Iterable[tuple[str, str, Mapping[str, str]]], fidelities: Sequence[str]) -> str:
    """Write the table."""
    lines = [("feature", "reference", *fidelities),
             *((name, reference, *(figures.get(one, NONE) for one in fidelities))
               for name, reference, figures in rows)]
    return "\n".join(f"{name:41}{reference:20}" + "".join(f"{figure:>13}" for figure in figures)
                     for name, reference, *figures in lines)
