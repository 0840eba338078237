"""Equations of an all-reduce on a given network in the host stack's costs, by simulation.

A ring's time is a maximum of sums of the costs of stack and network (`sim.network.flow.pipeline`):
short messages pay for their way around the ring, long ones for bytes alone. Near a given set of
costs it is one of these sums. So the simulator is run with these costs, and with each of them a
little larger: the differences are the coefficients. Costs that fit the equations better are the
next set to try, until they stay what they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from harp.collectives.registry import make_plan
from sim.answer.scenario import Settings
from sim.answer.timer import Timer
from sim.calibration.derive import SERIAL, Equation
from sim.cluster.cluster import Cluster
from sim.cluster.placement import choose_gpus, place
from sim.network.transport import Style, Transport
from sim.schema.input_errors import Problem, TopologyError
from sim.schema.nccl_defaults import channel_count
from sim.schema.parameters import PLAIN_VALUES, load_stack
from sim.schema.topology_model import Topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sim.calibration.nccl_log import LogRow, NcclLog

MORE = 1.01
"""By how much one cost is larger than the others."""
LEAST = 1e-3
"""Least cost to start from, as a share of kernel TCP's: 0 does not grow."""
BUSY = 1e3
"""By how much bytes cost more where their number is asked, so that no network hides them."""


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
    """Equations of a ring all-reduce over all GPUs of ``cluster``, styled as its first scenario.

    Args:
        cluster: the network.
        stack: the set that supplies what is not derived.
        near: costs of a stack near which the equations are to hold, by name.

    """

    def __init__(self, cluster: Cluster, stack: str, near: Mapping[str, float]) -> None:
        topology = cluster.topology
        scenario = topology.scenarios[0]
        gpus = choose_gpus(cluster, range(cluster.hosts), cluster.gpus, affinity=scenario.affinity)
        placement = place(cluster, gpus, channel_count(topology, scenario),
                          affinity=scenario.affinity)
        base, usual = Settings().stack(topology, stack), load_stack("kernel-tcp")
        self._ranks = cluster.gpus
        self._payload = Transport(cluster, base, Style()).payload
        self._at = {name: max(near[name], LEAST * getattr(usual, name).value) for name in SERIAL}
        self._at["cost_per_byte"] = max(
            near["cost_per_byte"] + near["cost_per_packet"] / self._payload,
            LEAST * usual.cost_per_byte.value)

        def timer(costs: Mapping[str, float], flow_rate: float) -> Timer:
            values = {**costs, "cost_per_packet": 0.0, "flow_rate": flow_rate}
            made_up = Settings({f"{stack}.{name}": value for name, value in values.items()})
            return Timer(cluster, made_up.stack(topology, stack), scenario, placement)

        rate = base.flow_rate.value
        self._free = timer(dict.fromkeys(self._at, 0.0), rate)
        self._here = timer(self._at, rate)
        self._more = {name: timer({**self._at, name: MORE * self._at[name]}, rate)
                      for name in SERIAL}
        self._byte_s = BUSY * self._at["cost_per_byte"]
        self._busy = [timer({**self._at, "cost_per_byte": more * self._byte_s}, 1e30)
                      for more in (1.0, MORE)]
        self._known: dict[tuple[int, int], tuple[dict[str, float], float, float]] = {}

    def equation(self, row: LogRow) -> Equation:
        """The equation of one time of a log."""
        key = (row.size_bytes, row.size_bytes // row.count)
        if key not in self._known:
            self._known[key] = self._ask(*key)
        counts, fixed_s, floor_s = self._known[key]
        coefficients = counts | {"cost_per_packet": counts["cost_per_byte"] / self._payload}
        return Equation(row.time_s, coefficients, fixed_s, floor_s)

    def _ask(self, size: int, unit: int) -> tuple[dict[str, float], float, float]:
        """Return how often each cost counts, the network's latency and its time of bytes."""
        plan = make_plan("ring", ranks=self._ranks, nbytes=size, unit_bytes=unit)
        here_s = self._here.seconds(plan)
        counts = {name: (timer.seconds(plan) - here_s) / (self._at[name] * (MORE - 1))
                  for name, timer in self._more.items()}
        busy_s, busier_s = (timer.seconds(plan) for timer in self._busy)
        counts["cost_per_byte"] = (busier_s - busy_s) / (self._byte_s * (MORE - 1))
        shortest = make_plan("ring", ranks=self._ranks, nbytes=unit, unit_bytes=unit)
        floor_s = max(self._free.seconds(plan) - self._free.seconds(shortest), 0.0)
        serial_s = sum(counts[name] * self._at[name] for name in SERIAL)
        bytes_s = max(counts["cost_per_byte"] * self._at["cost_per_byte"], floor_s)
        return counts, here_s - serial_s - bytes_s, floor_s


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
