"""Speed and memory of the simulator at scale.

Fabrics are three-tier fat trees of 100 Gb/s links and 1 us a link. Routes are real ECMP: every
switch hashes the five-tuple (CRC32, a salt for each switch), and flows have random source ports.
Nothing is folded by symmetry: every host, flow and message is simulated for itself. Each row runs
in a process of its own, so that its peak memory is its own; rows of less than a second are repeated
there, and the median counts. A row names its floor, which is what the data alone would cost one
core, and its peers. docs/results/performance.md explains the rows and their bounds.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.rows import Row, by_id
from bench.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from bench.rows import Result
    from harp.collectives.collective_plan import Plan
    from harp.routing.fabric import Fabric
    from sim.network.flow.collective_steps import Edges

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

ROOT = Path(__file__).resolve().parents[2]
ALLREDUCE_BYTES = 64 << 20
FLOW_BYTES = 2e6
MERGE = 2e-2
"""Tolerance of the all-to-all: completions within 2 % of a flow's age are one event. No rank's end
moves by more than 0.04 % against 1e-3 (docs/results/performance.md)."""
SEED = 1
SAME_MACHINE = "on a machine of the same kind"
WORMHOLE = "Long et al., NSDI 2026, another layout and fabric"
TOUCHED = "each flow into and out of two heaps and along its links, 0.25 us a message"


@dataclass
class Measured:
    """The figures of a row's function."""

    seconds: float
    routing: str = "ECMP: CRC32, a salt for each switch, random source ports"
    tolerance: float | None = None
    repetitions: int = 1
    memory_mb: float = 0.0
    cpu_s: float = 0.0
    """CPU time of the process and its children: a slow row has more, a busy machine does not."""
    result: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Peer:
    """Another simulator at the workload of a row."""

    name: str
    seconds: float
    memory_mb: float | None = None
    source: str = SAME_MACHINE
    done: bool = True
    """False: it had not ended after ``seconds``."""


@dataclass(frozen=True)
class ScaleRow(Row):
    """A row with targets of seconds and MB; its function takes the tolerance."""

    target: float | None = None
    target_mb: float | None = None
    unit: str = field(default="s", kw_only=True)
    lower: bool = field(default=True, kw_only=True)
    floor_s: float | None = field(default=None, kw_only=True)
    floor_is: str = field(default="", kw_only=True)
    """The costs that the floor counts."""
    peers: tuple[Peer, ...] = field(default=(), kw_only=True)

    def declared(self) -> Result:
        """Return what a record of the row says before it is measured."""
        return {"id": self.id, "what": self.what, "unit": self.unit, "lower_is_better": self.lower,
                "target": self.target, "memory_target_mb": self.target_mb, "folding": "none",
                "floor_s": self.floor_s, "floor_is": self.floor_is,
                "peers": [asdict(peer) for peer in self.peers]}


def fat_tree(hosts: int) -> Fabric:
    """Three tiers without oversubscription, of 16-port or (16,384 hosts) 64-port switches."""
    from harp.routing import templates

    endpoints = templates.Endpoints.uniform(hosts)
    if hosts == 1024:
        return templates.fat_tree(endpoints, k=16)
    return templates.clos3(endpoints, pods=16, leaves=32, aggs=32, cores=1024)


class Router:
    """Routes between hosts, and how long it took to make them."""

    def __init__(self, fabric: Fabric) -> None:
        import numpy as np

        self.fabric, self.seconds = fabric, 0.0
        self._random = np.random.default_rng(SEED)

    def __call__(self, src: Ints, dst: Ints) -> tuple[Ints, Ints, Floats]:
        """Routes in CSR form, and the latency of each."""
        import numpy as np

        start_s = time.perf_counter()
        ports = self._random.integers(49152, 65536, len(src))
        ptr, links = self.fabric.route(self.fabric.flows(src, dst, src_port=ports))
        alpha_s = np.add.reduceat(self.fabric.link_latency_s[links], ptr[:-1])
        self.seconds += time.perf_counter() - start_s
        return ptr, links.astype(np.int64), alpha_s


def permutation(hosts: int, repetitions: int, tolerance: float | None) -> Measured:
    """Every host sends 2 MB to another; routes given, time to the last completion."""
    import numpy as np

    from sim.network.flow.fluid import EXACT, Fluid

    merge = EXACT if tolerance is None else tolerance
    fabric = fat_tree(hosts)
    router = Router(fabric)
    src = np.arange(hosts)
    dst = np.roll(src, 1)[np.random.default_rng(SEED).permutation(hosts)]
    src, dst = src[src != dst], dst[src != dst]
    ptr, links, alpha_s = router(src, dst)
    times = []
    for _ in range(repetitions):
        start_s = time.perf_counter()
        net = Fluid(fabric.link_bps / 8, merge)
        first = net.add_routes(ptr, links)
        net.start(first + np.arange(len(src)), np.full(len(src), FLOW_BYTES), at_s=alpha_s)
        end_s = net.drain()
        times.append(time.perf_counter() - start_s)
    solutions, visits = net.effort()
    return Measured(statistics.median(times), tolerance=merge, repetitions=repetitions, result={
        "end_ms": end_s * 1e3, "flows": len(src), "routes_s": router.seconds,
        "solutions": solutions, "flow_visits": visits})


def by_steps(plan: Plan, tolerance: float | None) -> Measured:
    """Every message of a collective over 1,024 hosts; includes the making of routes."""
    import numpy as np

    from sim.network.flow.collective_steps import Edges, run_steps
    from sim.network.flow.fluid import EXACT, Fluid

    fabric = fat_tree(1024)
    merge = EXACT if tolerance is None else tolerance
    start_s = time.perf_counter()
    router, net = Router(fabric), Fluid(fabric.link_bps / 8, merge)

    def edges(src: Ints, dst: Ints) -> Edges:
        ptr, links, alpha_s = router(src, dst)
        first, count = net.add_routes(ptr, links), len(src)
        return Edges(np.arange(first, first + count, dtype=np.int32), np.full(count, np.inf),
                     alpha_s, np.zeros(count))

    times = run_steps(plan, net, edges)
    seconds = time.perf_counter() - start_s
    solutions, visits = net.effort()
    return Measured(seconds, tolerance=merge, result={
        "end_ms": times.end_s * 1e3, "messages": times.effort.pieces,
        "batches": times.effort.batches, "stages_held": times.effort.most_held,
        "routes_s": router.seconds, "solutions": solutions, "flow_visits": visits})


def ring_plan(*, shuffled: bool = False) -> Plan:
    """64 MiB over 1,024 hosts, in their order on the fabric or in a random one."""
    import numpy as np

    from harp.collectives.registry import make_plan

    order = np.random.default_rng(SEED).permutation(1024) if shuffled else None
    return make_plan("ring", ranks=1024, nbytes=ALLREDUCE_BYTES, order=order)


def ring_fluid(tolerance: float | None) -> Measured:
    """The ring as one coupled flow whose footprint is the sum of its edges'; includes routes."""
    import numpy as np

    from sim.network.flow.fluid import EXACT, Fluid
    from sim.network.message_paths import Paths

    merge = EXACT if tolerance is None else tolerance
    times = []
    for _ in range(5):
        fabric = fat_tree(1024)
        start_s = time.perf_counter()
        (phase,) = ring_plan().phases()
        edges = len(phase.src)
        ptr, links, alpha_s = Router(fabric)(phase.src.astype(np.int64), phase.dst.astype(np.int64))
        paths = Paths(np.repeat(np.arange(edges), np.diff(ptr)), links, np.ones(len(links)),
                      alpha_s, np.zeros(edges), np.full(edges, np.inf), np.zeros(edges, bool))
        net = Fluid(fabric.link_bps / 8, merge)
        share = phase.bytes_per_edge / phase.bytes_per_edge.max()
        route = net.add_routes(*paths.footprints(phase.group.astype(np.int64), share))
        net.start(route, float(phase.bytes_per_edge.max()), at_s=phase.steps * alpha_s.max())
        end_s = net.drain()
        times.append(time.perf_counter() - start_s)
    return Measured(statistics.median(times), tolerance=merge, repetitions=5,
                    result={"end_ms": end_s * 1e3})


def all_to_all(tolerance: float | None) -> Measured:
    """1,024 hosts, 64 MiB a rank: 1.05 M messages at once."""
    from harp.collectives.registry import make_plan

    plan = make_plan("alltoall", ranks=1024, nbytes=ALLREDUCE_BYTES)
    return by_steps(plan, MERGE if tolerance is None else tolerance)


def packet_permutation(_: float | None) -> Measured:
    """1,024 hosts, 2 MB each to another, frame by frame between real sessions; includes routes."""
    import numpy as np

    from bench.sim.packet_rows import permutation as move

    fabric = fat_tree(1024)
    src = np.arange(1024)
    dst = np.roll(src, 1)[np.random.default_rng(SEED).permutation(1024)]
    src, dst = src[src != dst], dst[src != dst]
    start_s = time.perf_counter()
    result = move(fabric, src.tolist(), dst.tolist(), int(FLOW_BYTES), SEED)
    return Measured(time.perf_counter() - start_s, result=result)


def packet_ring(_: float | None) -> Measured:
    """A ring allreduce over the first 128 hosts of a fat tree, frame by frame."""
    from bench.sim.packet_rows import ring
    from harp.routing import templates

    start_s = time.perf_counter()
    fabric = templates.fat_tree(templates.Endpoints.uniform(128), k=8)
    result = ring(fabric, 128, ALLREDUCE_BYTES, SEED)
    return Measured(time.perf_counter() - start_s, result=result)


def packet_all_to_all(_: float | None, *, over_tcp: bool = False) -> Measured:
    """1,024 hosts, 64 MiB a rank, frame by frame; a million connections, made as they are used."""
    from bench.sim.packet_rows import all_to_all as exchange

    start_s = time.perf_counter()
    result = exchange(fat_tree(1024), 1024, ALLREDUCE_BYTES, SEED, over_tcp=over_tcp)
    return Measured(time.perf_counter() - start_s, result=result)


def training_steps(_: float | None) -> Measured:
    """One step of VGG16 and one of BERT-large, from reading the file to both answers."""
    start_s = time.perf_counter()
    from sim.answer.scenario import run_scenario
    from sim.cluster.cluster import Cluster
    from sim.network.flow.fluid import EXACT
    from sim.schema import load

    topology = load(ROOT / "topologies" / "clos3-16384.yaml")
    scenario, cluster = topology.scenarios[-1], Cluster(topology)
    result: dict[str, Any] = {"scenario": scenario.name}
    for model, batch in (("vgg16", 128), ("bert-large", 32)):
        workload = topology.workload.model_copy(update={"model": model, "batch": batch})
        cluster.topology = topology.model_copy(update={"workload": workload})
        (answer,) = run_scenario(cluster, scenario, cluster.gpus)
        result[f"{model}_step_ms"] = answer.step_s * 1e3
    return Measured(time.perf_counter() - start_s, tolerance=EXACT, result=result)


def whole_command(topology: str, repetitions: int, *options: str) -> Measured:
    """A table with its intervals, as a user asks for it."""
    command = [sys.executable, "-m", "sim.run", f"topologies/{topology}.yaml", *options]
    times = []
    for _ in range(repetitions):
        start_s = time.perf_counter()
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start_s)
    memory_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6
    return Measured(statistics.median(times), repetitions=repetitions, memory_mb=memory_mb,
                    routing="as the file says")


ROWS = by_id((
    ScaleRow("perm-1024", "permutation of 1,024 hosts, 2 MB, routes given",
             lambda t: permutation(1024, 11, t), 0.05, floor_s=0.0002, floor_is=TOUCHED,
             peers=(Peer("SimGrid 4.1", 0.92), Peer("htsim (packets)", 18.9))),
    ScaleRow("perm-1024-command", "the same, whole command", lambda t: permutation(1024, 1, t),
             1.5, floor_s=0.1, floor_is="importing numpy"),
    ScaleRow("perm-16384", "permutation of 16,384 hosts, routes given",
             lambda t: permutation(16384, 5, t), 2.0, floor_s=0.004, floor_is=TOUCHED,
             peers=(Peer("SimGrid", 298.0, done=False),)),
    ScaleRow("ring-1024-steps", "ring allreduce, 64 MiB, all 2.1 M messages",
             lambda t: by_steps(ring_plan(), t), 3.0, 500.0, floor_s=0.5, floor_is=TOUCHED,
             peers=(Peer("ASTRA-sim (analytical)", 6.5), Peer("SimGrid", 33.7))),
    ScaleRow("ring-1024-fluid", "the same as one fluid phase", ring_fluid, 0.1,
             floor_s=0.001),
    ScaleRow("ring-1024-ecmp", "the ring in a random order: ECMP collides, ranks drift apart",
             lambda t: by_steps(ring_plan(shuffled=True), t), floor_s=1.0,
             floor_is="the same, where each flow is solved 3.2 times"),
    ScaleRow("a2a-1024", "all-to-all, 64 MiB a rank, 1.05 M messages", all_to_all, 5.0, 1000.0,
             floor_s=0.8, floor_is="each flow is solved 4 times (0.25 s) and routed (0.5 s)",
             peers=(Peer("ASTRA-sim", 18.9, 950.0), Peer("SimGrid", 22.3, 2700.0))),
    ScaleRow("a2a-1024-run", "python -m sim.run topologies/clos3-1024.yaml, all-to-all, 64 MiB",
             lambda _: whole_command("clos3-1024", 1, "--collective", "alltoall", "--sizes",
                                     "64MiB"), 10.0, 1000.0),
    ScaleRow("a2a-1024-sizes", "the same at 30 sizes from 8 B to 4 GiB",
             lambda _: whole_command("clos3-1024", 1, "--collective", "alltoall")),
    ScaleRow("step-16384", "a step of VGG16 and one of BERT-large, 16,384 GPUs", training_steps,
             10.0, 2000.0, floor_s=1.0),
    ScaleRow("packet-perm-1024", "the permutation in frames of 4 KiB between real sessions",
             packet_permutation, 10.0, peers=(Peer("htsim", 18.9),)),
    ScaleRow("packet-ring-128", "ring allreduce of 128 hosts, 64 MiB, in frames of 4 KiB",
             packet_ring, 40.0,
             peers=(Peer("htsim", 172.7), Peer("SimAI (ns-3)", 56.0, 3600.0))),
    ScaleRow("packet-a2a-1024", "all-to-all of 1,024 hosts, 64 MiB a rank, in frames of 4 KiB",
             packet_all_to_all, None, 1000.0),
    ScaleRow("packet-a2a-1024-tcp", "the same over kernel TCP",
             partial(packet_all_to_all, over_tcp=True), None, 1000.0),
    ScaleRow("packet-gpt13b-128", "a step of GPT-13B on 128 GPUs, every frame, whole command",
             lambda _: whole_command("gpt13b-a100-8x100g", 1, "--fidelity", "packet"), 120.0,
             1000.0, peers=(Peer("ns-3", 9 * 3600.0, source=WORMHOLE),)),
    ScaleRow("packet-gpt13b-128-steady", "the same, but for collectives that repeat themselves",
             lambda _: whole_command("gpt13b-a100-8x100g", 1, "--fidelity", "steady"), 20.0,
             1000.0, peers=(Peer("Wormhole", 300.0, source=WORMHOLE),)),
    ScaleRow("taco", "python -m sim.run topologies/taco-vgg16-v100-25g.yaml, 24 draws",
             lambda _: whole_command("taco-vgg16-v100-25g", 3), 3.0, floor_s=3.3,
             floor_is="CPU time of 13 rows in 24 draws, 9 ms each, and 0.4 s of imports"),
    ScaleRow("clos3-1024", "python -m sim.run topologies/clos3-1024.yaml, 14 draws",
             lambda _: whole_command("clos3-1024", 1), 10.0, floor_s=0.4, floor_is="imports"),
))


def run_row(row: ScaleRow, tolerance: float | None) -> Result:
    """Run a row in a process of its own, and judge it."""
    start_s = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "bench.sim.scale_rows", row.id,
                           json.dumps(tolerance)],
                          check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    command_s = time.perf_counter() - start_s
    detail = json.loads(done.stdout)
    seconds = detail.pop("seconds")
    value = command_s if row.id.endswith("-command") else seconds
    ok = ((row.target is None or value <= row.target)
          and (row.target_mb is None or detail["memory_mb"] <= row.target_mb))
    return {**row.declared(), "value": value, "ok": ok, "command_s": command_s,
            "statistic": "median", **detail}


def measure(rows: Sequence[ScaleRow], tolerance: float | None) -> Iterator[Result]:
    """Run rows one after the other."""
    return (run_row(row, tolerance) for row in rows)


def run_here(name: str, tolerance: float | None) -> Measured:
    """Run one row in this process; memory is the process's peak."""
    measured: Measured = ROWS[name].function(tolerance)
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    measured.memory_mb = measured.memory_mb or own.ru_maxrss * 1024 / 1e6
    measured.cpu_s = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    return measured


_LINE = "{:<24} {:<65} {:>9} {:>8} {:>8} {:>7} {:>8} {:>8} {:<12} {:>3}"


def line(row: Result) -> str:
    """Write a row, and lines below it for its floor and its peers."""
    runs = row["repetitions"]
    lines = [_LINE.format(
        row["id"], row["what"], _figure(row["value"], "s"), _figure(row["cpu_s"], "s"),
        _figure(row["target"], "s"), _figure(row["memory_mb"], "MB"),
        _figure(row["memory_target_mb"], "MB"), _figure(row["floor_s"], "s"),
        f"{row['statistic']} of {runs}" if runs > 1 else "1", "yes" if row["ok"] else "NO")]
    if row["floor_is"]:
        lines.append(f"  floor: {row['floor_is']}")
    for source, peers in groupby(row["peers"], key=itemgetter("source")):
        lines.append(f"  {source}: {', '.join(map(_peer, peers))}")
    return "\n".join(lines)


def _peer(peer: Result) -> str:
    memory = f" and {_figure(peer['memory_mb'], 'MB')}" if peer["memory_mb"] else ""
    ended = "" if peer["done"] else "not done after "
    return f"{peer['name']} {ended}{_figure(peer['seconds'], 's')}{memory}"


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


SUBJECT = Subject(__doc__ or "", ROWS, measure, [
    click.Option(["--tolerance"], type=float, help="Merge completions within this share of a "
                 "flow's age, instead of each row's own tolerance."),
], _LINE.format("row", "what", "time", "CPU", "target", "peak", "of", "floor", "runs", "met"), line)

if __name__ == "__main__":
    print(json.dumps(asdict(run_here(sys.argv[1], json.loads(sys.argv[2])))))
