"""What an all-reduce on a given network asks of the host stack, found by asking the simulator.

The ring's time is linear in the stack's costs once they are large: t = steps · (latency) + bytes ·
(CPU seconds per byte). So the simulator is run with a few made-up stacks, and the differences are
the coefficients, however many GPUs share a core and whatever the placement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from harp.collectives.registry import make_plan
from sim.calibration.equation import Equation
from sim.cluster import Cluster
from sim.collective_bench import Timer
from sim.placement import choose_gpus, place
from sim.scenario import Settings
from sim.schema.errors import Problem, TopologyError
from sim.schema.model import Topology
from sim.schema.parameters import PLAIN_VALUES
from sim.transport import Style, Transport

if TYPE_CHECKING:
    from sim.calibration.nccl_log import LogRow, NcclLog

LATENCY_S = 1e-3
CPU_S = 1e-6
"""Large next to any network, so that nothing hides them: a latency, and seconds per byte."""


def bare_cluster(log: NcclLog, file: str) -> Cluster:
    """Hosts of a log on a network without limit or latency: all that is measured is the stack's."""
    if not log.hosts:
        raise TopologyError(file, Problem("it does not name the ranks' hosts",
                                          allowed="--topology with the cluster that it ran on"))
    names = list(dict.fromkeys(log.hosts))
    counts = {log.hosts.count(name) for name in names}
    if len(names) < 2 or len(counts) != 1:
        says = "all ranks are on one host" if len(names) < 2 else "hosts have unequal ranks"
        raise TopologyError(file, Problem(says, allowed="several hosts with equally many ranks"))
    rate = "100000Tbps"
    return Cluster(Topology.model_validate({
        "name": "bare",
        "hosts": [{"name": "host", "count": len(names), "cores": 4096,
                   "gpus": {"count": counts.pop(), "model": "any", "effective": "1TFLOPS"},
                   "nvlink": {"rate": rate, "latency": "0s"},
                   "pcie": {"rate": rate, "latency": "0s"},
                   "nics": [{"name": "eth", "rate": rate}]}],
        "fabric": {"template": "single-switch", "latency": "0s"},
        "workload": {"model": "vgg16", "batch": 1},
        "scenarios": [{"name": "all-reduce", "stack": "kernel-tcp"}],
    }, context=PLAIN_VALUES))


class Ring:
    """Equations of a ring all-reduce over all GPUs of ``cluster``, styled as its first scenario."""

    def __init__(self, cluster: Cluster, stack: str) -> None:
        topology = cluster.topology
        scenario = topology.scenarios[0]
        gpus = choose_gpus(cluster, range(cluster.hosts), cluster.gpus, affinity=scenario.affinity)
        placement = place(cluster, gpus, scenario.channels, affinity=scenario.affinity)
        base = Settings().stack(topology, stack)
        self._ranks = cluster.gpus
        self._payload = Transport(cluster, base, Style()).payload

        def timer(latency_s: float, cpu_s: float) -> Timer:
            values = {"start_latency": latency_s, "cost_per_byte": cpu_s, "cost_per_packet": 0.0,
                      "cost_per_message": 0.0, "flow_rate": 1e30 if cpu_s else
                      base.flow_rate.value}
            made_up = Settings({f"{stack}.{name}": value for name, value in values.items()})
            return Timer(cluster, made_up.stack(topology, stack), scenario, placement)

        self._bare = timer(LATENCY_S, 0.0)
        self._slow = timer(LATENCY_S, CPU_S)
        self._later = timer(2 * LATENCY_S, CPU_S)
        self._slower = timer(LATENCY_S, 2 * CPU_S)
        self._known: dict[tuple[int, int], tuple[float, float, float, float]] = {}

    def equation(self, row: LogRow) -> Equation:
        """Say what one time of a log tells of the stack."""
        key = (row.size_bytes, row.size_bytes // row.count)
        if key not in self._known:
            self._known[key] = self._ask(*key)
        steps, bytes_, fixed_s, floor_s = self._known[key]
        return Equation(row.time_s, {
            "start_latency": steps, "cost_per_message": steps,
            "cost_per_byte": bytes_, "cost_per_packet": bytes_ / self._payload,
        }, fixed_s, floor_s)

    def _ask(self, size: int, unit: int) -> tuple[float, float, float, float]:
        """Return steps, bytes that a core handles, the network's latency and its time of bytes."""
        plan = make_plan("ring", ranks=self._ranks, nbytes=size, unit_bytes=unit)
        bare, slow, later, slower = (
            timer.seconds(plan) for timer in (self._bare, self._slow, self._later, self._slower))
        latency = 2 * slow - slower  # what is left of the time without any CPU cost
        steps = (later - slow) / LATENCY_S
        return (steps, (slower - slow) / CPU_S, latency - steps * LATENCY_S,
                max(bare - latency, 0.0))


def check_ranks(cluster: Cluster, log: NcclLog, file: str) -> None:
    """Raise TopologyError unless the cluster is as large as what the log measured."""
    hosts = np.bincount(cluster.host)
    if cluster.gpus != log.ranks:
        raise TopologyError(file, Problem(
            f"it measures {log.ranks} ranks, and the topology has {cluster.gpus} GPUs",
            allowed="a topology with one GPU for each rank"))
    if log.hosts and len(set(log.hosts)) != len(hosts):
        raise TopologyError(file, Problem(
            f"it names {len(set(log.hosts))} hosts, and the topology has {len(hosts)}",
            allowed="a topology with the log's hosts"))
