"""What a plan brings the real stack: hashed and planned source ports through kernel routers.

    python bench/planned_paths.py [--json] [--hosts N] [--spines N] [--draws N]     (root)

Namespaces make a leaf-spine of Linux routers, which hash addresses and ports; tbf gives every cable
20 Mb/s. Each host of one leaf sends 2 MB to one of the other, all at once, by HARP engines over
UDP: as many flows as uplinks, so no two need share one. In turn the source ports are any (what the
engine takes, and the switches hash) and those of `harp plan`; then the same with as much sent back.
Prints the median, least and largest completion, by the wall clock, and what the switches' own
hashing says of the fullest link.
"""

from __future__ import annotations

import json
import statistics
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, NamedTuple

import click
import numpy as np

from harp.net import Engine
from harp.routing.deployment import Deployment, Ranks, Wanted, plan_job
from harp.routing.templates import Endpoints, SwitchHash, Wires, leaf_spine
from sim.network.lab.wiring import Wiring

if TYPE_CHECKING:
    from harp.routing.fabric import Fabric

BPS = 20e6
MESSAGE = bytes(2 << 20)
OVERHEAD = 1500 / 1424
"""An IP packet over the payload of HARP's frame in it, nearly."""
PATIENCE_S = 120


class Run(NamedTuple):
    """One run of all flows: completion, and demand over capacity of the fullest link."""

    seconds: float
    max_load: float


def make_fabric(hosts: int, spines: int) -> Fabric:
    """Two leaves under ``spines``, hashed as Linux does."""
    wires = Wires(BPS, 1e-6, SwitchHash("linux", seed=5))
    return leaf_spine(Endpoints.uniform(hosts, bps=BPS), leaves=2, spines=spines, wires=wires)


def run_flows(wiring: Wiring, fabric: Fabric, plan: Deployment, *, planned: bool) -> Run:
    """Let every rank send its message at once."""
    with ExitStack() as stack:
        engines = []
        for rank in plan.ranks:
            address = rank.listen[0] if planned else rank.listen[0].partition(":")[0]
            with wiring.hosts[rank.rank].entered():
                engines.append(stack.enter_context(Engine("udp", address=address, frames=512)))
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
        posted = [far.post(bytearray(len(MESSAGE))) for _, far in pairs]
        for near, _ in pairs:
            near.send(MESSAGE)
        for one in posted:
            one.wait(PATIENCE_S)
        seconds = time.perf_counter() - began_s
    return Run(seconds, _max_load(fabric, plan, np.array(ports)))


def _max_load(fabric: Fabric, plan: Deployment, ports: np.ndarray) -> float:
    ends = np.array([(flow.sender, flow.receiver) for flow in plan.flows])
    _, links = fabric.route(fabric.flows(*ends.T, *ports.T))
    return float(np.bincount(links).max())


def compare(fabric: Fabric, wiring: Wiring, pairs: list[tuple[int, int]],
            draws: int) -> dict[str, float]:
    """Completions by hashed and by planned ports, in turn."""
    each = fabric.endpoint_host.astype(np.int64)
    names = tuple(f"h-{number}" for number in each)
    plan = plan_job(fabric, Ranks(each, each, np.ones_like(each), names), Wanted(pairs))
    runs: dict[str, list[Run]] = {"hashed": [], "planned": []}
    for _ in range(draws):
        for kind, made in runs.items():
            made.append(run_flows(wiring, fabric, plan, planned=kind == "planned"))
    row = {"bound_s": len(MESSAGE) * 8 * OVERHEAD / BPS}
    for kind, made in runs.items():
        row |= {f"{kind}_s": statistics.median(run.seconds for run in made),
                f"{kind}_least_s": min(made).seconds, f"{kind}_most_s": max(made).seconds,
                f"{kind}_load": statistics.mean(run.max_load for run in made)}
    return row | {"gain": row["hashed_s"] / row["planned_s"],
                  "of_bound": row["bound_s"] / row["planned_s"]}


@click.command()
@click.option("--hosts", default=8, help="Half of them on each leaf.")
@click.option("--spines", default=4)
@click.option("--draws", default=7, help="Runs of each kind.")
@click.option("--json", "as_json", is_flag=True)
def main(hosts: int, spines: int, draws: int, *, as_json: bool) -> None:
    """Print completions by hashed and by planned source ports."""
    fabric, half = make_fabric(hosts, spines), hosts // 2
    forth = [(rank, rank + half) for rank in range(half)]
    with closing(Wiring(fabric, 1.0, 1500)) as wiring:
        rows = {"one way": compare(fabric, wiring, forth, draws), "both ways": compare(
            fabric, wiring, [*forth, *((to, rank) for rank, to in forth)], draws)}
    if as_json:
        click.echo(json.dumps(rows))
        return
    for name, row in rows.items():
        click.echo(f"{name}: {hosts} hosts, {spines} spines, {draws} runs each; without collisions "
                   f"{row['bound_s']:.3f} s")
        for kind in ("hashed", "planned"):
            click.echo(f"  {kind:8} median {row[f'{kind}_s']:.3f} s ({row[f'{kind}_least_s']:.3f} "
                       f"to {row[f'{kind}_most_s']:.3f}), fullest link {row[f'{kind}_load']:.2f} "
                       "flows")
        click.echo(f"  hashed over planned {row['gain']:.2f}; the bound over planned "
                   f"{row['of_bound']:.2f}")


if __name__ == "__main__":
    main()
