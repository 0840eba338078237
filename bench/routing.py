"""What planned routes buy: max link load and completion time under ECMP, spray and the plan.

    python bench/routing.py [--json]

Fabrics are non-blocking leaf-spines and fat trees, all links 100 Gb/s. The permutation sends one
flow from every host to another one; the rings are four jobs whose ranks lie scattered over all
hosts, each rank sending to the next. Every flow moves 64 MiB; completion is that of the last flow,
by max-min fair sharing. ECMP is the mean of ten draws of source ports, the re-plan the slowest of
three failures of one cable each. ``--json`` prints a list of {id, value, unit, target, ok}.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

from harp.routing.planner import plan_paths, replan
from harp.routing.ports import DYNAMIC_PORTS
from harp.routing.templates import Endpoints, fat_tree, leaf_spine
from sim.network.flow.fluid import Fluid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from harp.routing.fabric import Fabric
    from harp.routing.plan import PathPlan

    Ints = NDArray[np.int64]

FLOW_BITS = 8 * 64 * 2**20
RING_JOBS = 4
ECMP_DRAWS = 10
FAILURES = 3
LEAVES = {64: 8, 256: 16, 1024: 32}
FAT_TREE_K = {64: 8, 256: 12, 1024: 16}
PLAN_TARGET_S, REPLAN_TARGET_S, BOUND_TARGET = 2.0, 0.5, 0.99


@dataclass(frozen=True)
class Case:
    """Loads and completions by routing, and what planning took."""

    name: str
    load: dict[str, float]
    completion_ms: dict[str, float]
    bound: float
    plan_s: float
    replan_s: float
    replan_share: float
    """Collision-free bound over load after a failure, at its worst; 1 is the best possible."""


def fabrics(hosts: int) -> Iterator[tuple[str, Fabric]]:
    endpoints, leaves = Endpoints.uniform(hosts), LEAVES[hosts]
    yield "leaf-spine", leaf_spine(endpoints, leaves=leaves, spines=hosts // leaves)
    yield "three-tier", fat_tree(endpoints, k=FAT_TREE_K[hosts])


def traffics(hosts: int, rng: np.random.Generator) -> Iterator[tuple[str, Ints, Ints]]:
    """Yield a permutation (one cycle, so that nobody sends to itself) and concurrent rings."""
    for name, jobs in (("permutation", 1), ("rings", RING_JOBS)):
        rings = np.array_split(rng.permutation(hosts), jobs)
        yield name, np.concatenate(rings), np.concatenate([np.roll(ring, -1) for ring in rings])


def outcome(fabric: Fabric, ptr: Ints, links: NDArray[np.int32],
            share: NDArray[np.float64] | None = None) -> tuple[float, float]:
    """Max link load at line rate, and completion in milliseconds, of one route a flow."""
    flow = np.repeat(np.arange(ptr.size - 1), np.diff(ptr))
    demand = fabric.link_bps[links[ptr[:-1]]][flow] * (1.0 if share is None else share)
    load = np.bincount(links, demand, len(fabric.link_bps)) / fabric.link_bps
    network = Fluid(fabric.link_bps)
    first = network.add_routes(ptr, links, share)
    network.start(first + np.arange(ptr.size - 1), np.full(ptr.size - 1, FLOW_BITS))
    return float(load.max()), 1e3 * network.drain()


def ecmp(fabric: Fabric, src: Ints, dst: Ints, rng: np.random.Generator) -> tuple[float, float]:
    """Mean outcome of ``ECMP_DRAWS`` draws of random source ports."""
    draws = [outcome(fabric, *fabric.route(fabric.flows(src, dst, rng.choice(DYNAMIC_PORTS,
                                                                             src.size))))
             for _ in range(ECMP_DRAWS)]
    load, completion = np.mean(draws, axis=0)
    return float(load), float(completion)


def failures(fabric: Fabric, plan: PathPlan, rng: np.random.Generator) -> tuple[float, float]:
    """Re-plan after one cable failed between switches: slowest time, smallest share of bound."""
    inner = np.flatnonzero((fabric.link_src < len(fabric.switches))
                           & (fabric.link_dst < len(fabric.switches)))
    dead = rng.choice(np.intersect1d(inner, plan.links), FAILURES, replace=False)
    times, shares = [], []
    for link in dead:
        degraded = fabric.without([link, link ^ 1])
        start = time.perf_counter()
        again = replan(plan, degraded)
        times.append(time.perf_counter() - start)
        again.verify(degraded)
        shares.append(again.bound / again.max_load)
    return max(times), min(shares)


def measure(name: str, fabric: Fabric, src: Ints, dst: Ints, rng: np.random.Generator) -> Case:
    start = time.perf_counter()
    plan = plan_paths(fabric, src, dst)
    plan_s = time.perf_counter() - start
    plan.verify(fabric)
    flows = fabric.flows(src, dst)
    results = {"ecmp": ecmp(fabric, src, dst, rng),
               "spray": outcome(fabric, *fabric.route_spray(flows)),
               "plan": outcome(fabric, *fabric.route(plan.flows(fabric), plan.bond_port))}
    replan_s, replan_share = failures(fabric, plan, rng)
    return Case(name, {key: load for key, (load, _) in results.items()},
                {key: completion for key, (_, completion) in results.items()},
                plan.bound, plan_s, replan_s, replan_share)


def records(case: Case) -> Iterator[dict[str, object]]:
    """Yield the rows of ``--json``; ``target`` is None for what is only reported."""

    def row(what: str, value: float, unit: str, target: float | None = None,
            *, ok: bool = True) -> dict[str, object]:
        return {"id": f"{case.name}-{what}", "value": value, "unit": unit, "target": target,
                "ok": ok}

    for routing in ("ecmp", "spray"):
        yield row(f"{routing}-load", case.load[routing], "demand/capacity")
        yield row(f"{routing}-completion", case.completion_ms[routing], "ms")
    limit = min(case.bound / BOUND_TARGET, case.load["ecmp"])
    yield row("plan-load", case.load["plan"], "demand/capacity", limit,
              ok=case.load["plan"] <= limit)
    slowest = case.completion_ms["ecmp"]
    yield row("plan-completion", case.completion_ms["plan"], "ms", slowest,
              ok=case.completion_ms["plan"] <= slowest)
    yield row("plan-time", case.plan_s, "s", PLAN_TARGET_S, ok=case.plan_s <= PLAN_TARGET_S)
    yield row("replan-time", case.replan_s, "s", REPLAN_TARGET_S,
              ok=case.replan_s <= REPLAN_TARGET_S)
    yield row("replan-share-of-bound", case.replan_share, "1", BOUND_TARGET,
              ok=case.replan_share >= BOUND_TARGET)


def show(cases: list[Case]) -> None:
    table = Table(title="Max link load (demand over capacity) and completion of 64 MiB flows")
    table.add_column("fabric, hosts, traffic")
    for heading in ("ECMP", "spray", "plan", "bound", "ECMP ms", "spray ms", "plan ms", "plan s",
                    "re-plan s", "of bound"):
        table.add_column(heading, justify="right")
    for case in cases:
        table.add_row(case.name, *(f"{case.load[r]:.2f}" for r in case.load), f"{case.bound:.2f}",
                      *(f"{ms:.2f}" for ms in case.completion_ms.values()),
                      f"{case.plan_s:.3f}", f"{case.replan_s:.3f}", f"{case.replan_share:.2f}")
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def main() -> None:
    rng = np.random.default_rng(1)
    cases = [measure(f"{kind}-{hosts}-{traffic}", fabric, src, dst, rng)
             for hosts in LEAVES for kind, fabric in fabrics(hosts)
             for traffic, src, dst in traffics(hosts, rng)]
    rows = [row for case in cases for row in records(case)]
    if "--json" in sys.argv[1:]:
        print(json.dumps(rows, indent=1))
    else:
        show(cases)
    sys.exit(any(not row["ok"] for row in rows))


if __name__ == "__main__":
    main()
