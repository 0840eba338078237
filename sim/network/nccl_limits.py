"""Limits of a collective by NCCL's kernels and proxies, beside links, where NICs move its bytes.

Bytes alone would let two hosts send an all-reduce at the rate of their NICs, and long messages of a
ring would hide its latencies. NCCL's own model of its times (`sim.network.nccl`) has neither, and
what it has instead was measured on NVIDIA's hosts:

- A channel reduces and copies at some rate, in trees for both ways at once, and by LL and LL128 for
  flags besides. The table has that rate for each channel that the search finds, one a NIC: of what
  NICs carry trees reach 82 % on hosts of V100, 52 % of A100 and 46 % of H100. Slower NICs are
  themselves the limit: p4de's, of 100 Gb/s, reach 78 of 94 GB/s on the bus. The search gives no
  tree more than the links inside a host, and sizes in the middle reach a share of the rate
  (`sim.network.nccl.tree_share`). Versions before 2.8 reach less (NVIDIA/nccl issue 495: 75 GB/s by
  2.7, of 177).
- Latencies of a ring's steps add up beside its bytes, and a step takes the proxy threads some time
  even inside a host, since each rank's step waits for the one before it. That NCCL counts them 1.4
  times beyond short messages (1.9 before Ampere), to choose between rings and trees, is left out.

With one GPU a host none of this shows: one process sends and receives all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harp.collectives.protocol import PROTOCOLS
from sim.network.nccl import (
    generation_of,
    has_amd,
    held_rate,
    rings_found,
    step_overhead_us,
    tree_share,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harp.collectives.collective_plan import Plan
    from harp.collectives.protocol import Protocol
    from sim.cluster.cluster import Cluster

RINGS = ("ring", "reduce-scatter", "allgather")
"""Plans that are rings: the first one goes around twice, the others once."""
OVERHEAD_S = 1e-6
"""Least cost that NCCL counts for a message (`sim.network.nccl.step_overhead_us`): a stack whose
messages cost more, by a fit to collectives, has the time of steps in that cost."""


@dataclass(frozen=True)
class Limits:
    """Limits of GPUs that take part in a collective."""

    ranks: int
    hosts: int
    generation: int
    rings: int
    """Rings that NCCL's search finds."""
    inner: float
    """GB/s of a GPU's NVLink each way; infinite where it has none."""
    amd: bool
    """Whether the processors are AMD's."""
    on_line: float
    """Factor of the time on lines and at caps."""
    steps: bool
    """Whether kernels wait for each step of a ring, beside the time of its messages."""

    @classmethod
    def of(cls, cluster: Cluster, gpus: NDArray[np.int64], *, on_line: float = 1.0,
           steps: bool = True) -> Limits | None:
        """Limits of these GPUs; None where hosts have one each."""
        hosts, ranks = len(np.unique(cluster.host[gpus])), len(gpus)
        if hosts == ranks:
            return None
        topology = cluster.topology
        groups = [group for group in topology.hosts for _ in range(group.count)]
        group = groups[cluster.host[gpus[0]]]
        inner = group.nvlink.rate / 8e9 if group.nvlink is not None else math.inf
        return cls(ranks, hosts, generation_of(group), rings_found(topology, group, hosts), inner,
                   has_amd(group), on_line, steps and hosts > 1)

    def bytes_per_s(self, plan: Plan, protocol: Protocol) -> float:
        """Bytes of a plan, those of the protocol included, that are done in a second, at most."""
        if plan.name not in ("tree", *RINGS) or protocol not in PROTOCOLS:
            return math.inf
        algorithm = "tree" if plan.name == "tree" else "ring"
        if algorithm == "tree" and self.hosts == 1:
            return math.inf
        bus = held_rate(algorithm, PROTOCOLS.index(protocol),
                        self.inner if algorithm == "tree" else math.inf, hosts=self.hosts,
                        generation=self.generation, rings=self.rings, amd=self.amd)
        if algorithm == "tree":
            bus *= tree_share(round(plan.nbytes / protocol.wire), protocol)
        passes = 2 if plan.name in ("tree", "ring") else 1
        return bus * 1e9 * protocol.wire * self.ranks / (passes * (self.ranks - 1)) / self.on_line

    def latency_s(self, plan: Plan, protocol: Protocol, *, steps: int,
                  alpha_s: NDArray[np.float64], inner: NDArray[np.bool_]) -> float:
        """Latency of all steps of a ring, whose edges have these latencies; of other plans 0."""
        if not self.steps or plan.name not in RINGS or protocol not in PROTOCOLS:
            return 0.0
        least_s = step_overhead_us(PROTOCOLS.index(protocol), amd=self.amd) * 1e-6
        step_s = float(np.where(inner, np.maximum(alpha_s, least_s), alpha_s).mean())
        return steps * step_s
