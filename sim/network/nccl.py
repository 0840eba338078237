"""NCCL's choice of algorithm and protocol, by its own model of their times.

NCCL predicts latency + bytes / rate for each algorithm and protocol and takes the least
(ncclTopoTuneModel and ncclTopoGetAlgoTime). All figures are those of src/graph/tuning.cc and
search.cc, NVIDIA/nccl 2.19 to 2.23. The model knows rings, trees and NVLink SHARP
(`sim.network.nvls`, by the table of 2.30); with one GPU a host NCCL has another all-gather, which
is left out.

The rate that NCCL assumes is not the one that the simulator finds: NCCL reads a NIC's rate from its
driver, and takes a virtual one that gives none for 10 Gb/s.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from harp.collectives.protocol import LL128, PROTOCOLS, Protocol
from harp.collectives.registry import make_plan
from sim.network.nvls import EFFICIENCY, HOP_US, NET_US, NVLS, nvls_plan
from sim.schema.nccl_defaults import channel_count, is_hopper, rings_of
from sim.schema.parameters import StackSet, derives_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harp.collectives.collective_plan import Plan
    from harp.collectives.tuning import Tuning
    from sim.cluster.cluster import Cluster
    from sim.schema.hosts import HostGroup
    from sim.schema.scenario_keys import Scenario
    from sim.schema.topology_model import Topology

PLANS = {"allreduce": ("tree", "ring", "nvls"), "reduce-scatter": ("reduce-scatter",),
         "allgather": ("allgather",)}
"""Plans that NCCL chooses between for each collective that it tunes."""
NCCL_NAMES = {"allreduce": "AllReduce", "reduce-scatter": "ReduceScatter",
              "allgather": "AllGather"}
"""Their names in NCCL."""


# Latencies in us, by protocol in the order of PROTOCOLS; rates in GB/s.
_BASE = {"tree": (6.8, 14.0, 0.0), "ring": (6.6, 14.0, 8.4)}
_NVLINK = {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4)}
_PCIE = {"tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7)}
_NET = {"tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0)}
_NET_OVERHEAD = (1.0, 2.0)
"""Of a step between hosts, beside AMD's processors the second (getNetOverhead)."""
_SPEEDS = (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12)
_SPEEDS_HOPPER = (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12)
# By generation (Volta, Ampere, Hopper), for one host, two, and more; LL on several hosts by their
# processors instead: Intel's in the first row, AMD's in the second.
_LL_MOST = ((39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0))
_LL128_MOST = {"ring": ((20.0, 20.0, 20.0), (20.0, 20.0, 20.0), (36.7, 36.7, 36.7)),
               "tree": ((20.0, 20.0, 20.0), (20.0, 20.0, 20.0), (36.7, 36.7, 29.0))}
_TREE_MOST = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0))
# Share of its rate that a tree reaches at 64 B times a power of two.
_TREE_FACTOR = (
    (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1),
    (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9))
_UNKNOWN_BPS = 10e9
_NVLINK_BPS = 160e9
"""Of one NVLink of Volta to Hopper (SM70_NVLINK_BW and the like in src/graph/topo.h); in a host the
search finds a ring for each."""
_NVLS_TREE_MOST = {0.85: (57.7, 45.5), 0.74: (96.0, 80.0)}
"""GB/s of a channel of NVLSTree on two hosts, and on more (perChMaxNVLSTreeBws)."""
_NVLS_CHANNELS = 16
AMPERE, HOPPER = 1, 2
"""Generations of Ampere, and of Hopper and later."""
_PLATEAU = (1.9, 1.4, 1.4)
"""By how much a ring's latency grows beyond short messages, by generation."""


class Enabled(NamedTuple):
    """NCCL's choices that a plugin's settings leave, by the names of its log."""

    algorithms: tuple[str, ...]
    protocols: tuple[str, ...]


_ENABLED = {
    "efa": Enabled(("Ring", "Tree", "NVLS", "NVLSTree"), ("Simple",)),
    "slingshot": Enabled(("Ring", "Tree", "NVLS", "NVLSTree"), ("LL", "Simple")),
    "tcpx": Enabled(("Ring",), ("Simple",)),
    "tcpxo": Enabled(("Ring", "Tree"), ("LL128", "Simple")),
}
"""By stack. aws-ofi-nccl sets NCCL_PROTO=simple where a device may write out of order, as on all
instances before p5; for TCPX and TCPXO Google's guides set NCCL_ALGO, NCCL_PROTO and
NCCL_NVLS_ENABLE=0 (A3 High; nccl-env-profile-ll128.sh of A3 Mega). On Slingshot NCCL has no LL128
before 2.27, and CSCS and others set NCCL_PROTO=^LL128 since, as it "typically performs worse"
(docs/software/communication/nccl_env_vars, eth-cscs/cscs-docs)."""


class Choice(NamedTuple):
    """An algorithm and protocol, and the time that NCCL expects of them."""

    plan: str
    protocol: Protocol
    predicted_s: float
    channels: int = 0
    """0: as many as NCCL takes by itself."""
    efficiency: float = 0.0
    """Of NVLink SHARP, where it is the choice."""

    @property
    def algorithm(self) -> str:
        """NCCL's name of the plan."""
        return {"tree": "Tree", "nvls": "NVLS", "nvls-tree": "NVLSTree"}.get(self.plan, "Ring")

    @property
    def name(self) -> str:
        """Algorithm and protocol, as NCCL's log has them, and channels that were asked for."""
        more = f", {self.channels} channel{'s' if self.channels > 1 else ''}"
        return (f"{self.algorithm.lower()} {self.protocol.name}"
                f"{more if self.channels else ''}")


@dataclass(frozen=True)
class View:
    """A communicator as NCCL's model sees it."""

    ranks: int
    hosts: int
    generation: int
    """0: Volta and older, 1: Ampere, 2: Hopper and later."""
    nvlink: bool
    rings: int
    """Rings that the search finds, one a NIC or, in one host, an NVLink."""
    speed: float
    """GB/s of one of them."""
    channels: int
    ll128: bool
    """Whether NCCL trusts LL128 here. Between hosts it needs GPUDirect RDMA: NCCL refuses LL128 on
    paths through the CPU (interType in src/graph/tuning.cc; ncclTopoComputePaths in paths.cc)."""
    nvls: float = 0.0
    """Share of a ring's rate that NVLink SHARP reaches inside a host; 0 where there is none."""
    inner: float = 0.0
    """GB/s of a GPU's NVLink each way."""
    enabled: Enabled | None = None
    """None: all."""
    amd: bool = False
    """Whether the processors are AMD's."""

    @classmethod
    def of(cls, cluster: Cluster, scenario: Scenario, gpus: NDArray[np.int64]) -> View:
        """See GPUs of a cluster whose hosts are alike; of others, what the first GPU's host is."""
        topology = cluster.topology
        hosts = len(np.unique(cluster.host[gpus]))
        groups = [group for group in topology.hosts for _ in range(group.count)]
        group = groups[cluster.host[gpus[0]]]
        model, nvlink = group.gpus.model, group.nvlink is not None
        generation = generation_of(group)
        known = topology.vpc is None and group.nics[0].driver == "other"
        bps = min(nic.rate for nic in group.nics) if known else _UNKNOWN_BPS
        rings = rings_found(topology, group, hosts)
        if hosts == 1:
            link = group.nvlink if group.nvlink is not None else group.pcie_link
            bps = link.rate / rings
        trusted = generation == 2 or re.search(r"\b(V100|A100|A800|A30)\b", model) is not None
        direct = derives_from(scenario.stack, "rdma", topology.stacks, "stacks", StackSet)
        near = hosts == 1 or (topology.vpc is None and direct)
        switch = _sharp(cluster, group, gpus)
        return cls(len(gpus), hosts, generation, nvlink, rings,
                   _listed(bps / 8e9, generation) if hosts > 1 else bps / 8e9,
                   channel_count(topology, scenario), trusted and nvlink and near, switch,
                   group.nvlink.rate / 8e9 if group.nvlink is not None else 0.0,
                   _enabled(topology, scenario.stack, generation) if hosts > 1 else None,
                   has_amd(group))


def rings_found(topology: Topology, group: HostGroup, hosts: int) -> int:
    """Rings that the search finds: one a NIC or, in one host, an NVLink."""
    if hosts > 1:
        return rings_of(topology)
    link = group.nvlink if group.nvlink is not None else group.pcie_link
    return max(1, round(link.rate / _NVLINK_BPS))


def _enabled(topology: Topology, stack: str, generation: int) -> Enabled | None:
    """NCCL's choices that the plugin of a stack leaves; None: all."""
    for name, enabled in _ENABLED.items():
        if derives_from(stack, name, topology.stacks, "stacks", StackSet):
            return None if name == "efa" and generation == HOPPER else enabled
    return None


def _sharp(cluster: Cluster, group: HostGroup, gpus: NDArray[np.int64]) -> float:
    """Share of a ring's rate that NVLink SHARP reaches between these GPUs; 0 where it is not used.

    It needs NVSwitches of Hopper or later and more than one GPU a host. Four GH200 have none: six
    NVLinks join each pair (De Sensi et al., arXiv 2408.14090). Between hosts NCCL took
    trees where eight GPUs share a NIC (GKE's A3: sim/validation/cases), so a NIC for each is asked.
    """
    counts = np.unique(cluster.host[gpus], return_counts=True)[1]
    if not is_hopper(group) or group.nvlink is None or counts.min() < 2 or np.ptp(counts):
        return 0.0
    if re.search(r"\bGH200\b", group.gpus.model) and group.gpus.count <= 4:
        return 0.0
    if len(counts) > 1 and len(np.unique(cluster.endpoint[gpus])) < len(gpus):
        return 0.0
    return EFFICIENCY["blackwell" if re.search(r"\bG?B\d{2,3}", group.gpus.model) else "hopper"]


def _listed(rate: float, generation: int) -> float:
    """The largest speed of NCCL's list that a NIC has."""
    speeds = _SPEEDS_HOPPER if generation == 2 else _SPEEDS
    return float(next((speed for speed in speeds if speed <= rate), speeds[-1]))


def _doubled(speed: float, generation: int) -> float:
    """The least listed speed of twice ``speed``: what the search gives a tree inside its hosts.

    Of two hosts each has one child at most, so NCCL takes that for the rate of the whole tree.
    """
    speeds = _SPEEDS_HOPPER if generation == 2 else _SPEEDS
    return float(next((listed for listed in reversed(speeds) if listed >= 2 * speed), speeds[0]))


def tree_share(nbytes: int, protocol: Protocol) -> float:
    """Share of its rate that a tree reaches with ``nbytes`` of data, by NCCL's own table."""
    column = PROTOCOLS.index(protocol) if protocol in PROTOCOLS else -1
    log_size = max(nbytes >> 6, 1).bit_length() - 1
    return _TREE_FACTOR[column][log_size] if log_size < len(_TREE_FACTOR[column]) else 1.0


def generation_of(group: HostGroup) -> int:
    """0: Volta and older, 1: Ampere, 2: Hopper and later; by the name of the GPU."""
    return HOPPER if is_hopper(group) else int(bool(re.search(r"\bA\d{2,3}", group.gpus.model)))


def has_amd(group: HostGroup) -> bool:
    """Whether a host's processors are AMD's.

    Where a file does not say so, they are those of NVIDIA's own hosts: AMD's beside A100, Intel's
    beside V100 and H100 (data sheets of DGX-1, DGX A100, and DGX H100).
    """
    if group.processors is None:
        return generation_of(group) == AMPERE
    return group.processors == "amd"


def step_overhead_us(column: int, *, amd: bool) -> float:
    """Time that a step of a ring between hosts takes at least, for the proxy threads.

    A step by Simple counts three times.
    """
    return _NET_OVERHEAD[amd] * (3 if column == 2 else 1)


def choices(view: View, collective: str, nbytes: int, plans: Sequence[str] = ()) -> list[Choice]:
    """Choices of NCCL for a collective of `PLANS`, or for these ``plans`` of it."""
    every = [Choice(plan, protocol, predict_s(view, collective, plan, column, nbytes))
            for plan in plans or PLANS[collective] if plan != "nvls"
            for column, protocol in enumerate(PROTOCOLS)
            if protocol is not LL128 or view.ll128] + [
                Choice("nvls" if view.hosts == 1 else "nvls-tree", NVLS,
                       predict_nvls_s(view, nbytes), efficiency=view.nvls)
                for plan in plans or PLANS[collective] if plan == "nvls" and view.nvls]
    if view.enabled is None:
        return every
    algorithms, protocols = view.enabled
    return [choice for choice in every if choice.protocol.name in protocols
            and (plans or choice.algorithm in algorithms)]


def choose(view: View, collective: str, nbytes: int, plans: Sequence[str] = ()) -> Choice:
    """NCCL's own choice for a collective of ``nbytes``."""
    return min(choices(view, collective, nbytes, plans), key=lambda choice: choice.predicted_s)


def tuned_choice(view: View, collective: str, nbytes: int, tuning: Tuning) -> Choice:
    """NCCL's choice with this tuning table: the first usable row, or its own choice.

    Rows with CollNet or PAT are skipped: these are not modelled.
    """
    can = {(choice.algorithm, choice.protocol.name): choice
           for choice in choices(view, collective, nbytes)}
    for row in tuning.find(view.ranks, view.hosts, NCCL_NAMES[collective], nbytes):
        found = can.get((row.algorithm, row.protocol))
        if found is not None:
            return found._replace(channels=row.channels if row.channels < view.channels else 0)
    return choose(view, collective, nbytes)


def chosen_plan(choice: Choice, ranks: int, nbytes: int, *, unit_bytes: int, group: int) -> Plan:
    """The plan of a choice for ``nbytes`` of data, in the bytes of its protocol.

    Trees are in one chunk, since the protocol's window cuts what they carry.
    """
    if choice.protocol is NVLS:
        return nvls_plan(ranks, group, nbytes, unit_bytes, choice.efficiency)
    wire = choice.protocol.wire_bytes(nbytes, unit_bytes)
    return make_plan(choice.plan, ranks=ranks, unit_bytes=unit_bytes, group=group, nbytes=wire,
                     chunk_bytes=max(wire, 1))


def predict_nvls_s(view: View, nbytes: int) -> float:
    """Seconds that NVLS takes in a host, or NVLSTree between several.

    NCCL's model takes less for the switch than its bytes cost (see `sim.network.nvls`), and here
    the bytes count, so that two or three GPUs keep their ring.
    """
    local = view.ranks // view.hosts
    rate = view.inner * view.nvls * local / (local + 1)
    if view.hosts == 1:
        return HOP_US * 1e-6 + nbytes / (rate * 1e9)
    bus = view.rings * view.speed * (2 if view.hosts == 2 else 1)
    most = _NVLS_CHANNELS * _NVLS_TREE_MOST[view.nvls][min(view.hosts, 3) - 2]
    rate = min(rate, min(bus, most) * view.ranks / (2 * (view.ranks - 1)))
    steps = 2 * (view.hosts.bit_length() - 1)
    return (HOP_US + steps * NET_US) * 1e-6 + nbytes / (rate * 1e9)


def predict_s(view: View, collective: str, plan: str, column: int, nbytes: int) -> float:
    """Seconds that NCCL expects of a plan with the protocol in ``column`` of `PROTOCOLS`."""
    rate = _rate(view, "tree" if plan == "tree" else "ring", column)
    if plan == "tree":
        rate *= tree_share(nbytes, PROTOCOLS[column])
        latency_us, ratio = _tree_us(view, column), 0.5
    else:
        steps = (view.ranks - 1) * (2 if collective == "allreduce" else 1)
        latency_us, ratio = _ring_us(view, collective, steps, column), view.ranks / steps
        long = nbytes / (view.channels * view.ranks) >= 64
        if column == 2 and view.hosts > 1 and collective == "allreduce" and long:
            latency_us *= _PLATEAU[view.generation]
    return latency_us * 1e-6 + nbytes / (rate * ratio * 1e9)


def _rate(view: View, algorithm: str, column: int) -> float:
    """GB/s that NCCL expects on the bus."""
    rate = view.rings * view.speed
    if algorithm == "tree":
        if view.hosts == 2:
            rate = view.rings * _doubled(view.speed, view.generation)
            if view.nvlink and view.inner:  # the search gives no more than the links inside
                rate = min(rate, view.inner)
        rate *= 0.92
    alone = view.ranks == view.hosts
    rate = held_rate(algorithm, column, rate, hosts=view.hosts, generation=view.generation,
                     rings=view.rings, amd=view.amd, alone=alone)
    return rate * (0.85 if algorithm == "tree" and (view.generation == 2 or alone) else 1.0)


def held_rate(algorithm: str, column: int, rate: float, *, hosts: int, generation: int,
              rings: int, amd: bool, alone: bool = False) -> float:
    """Of a ``rate`` of links, in GB/s on the bus, what channels of a protocol reach of it."""
    scale = min(hosts, 3) - 1
    if algorithm == "tree":
        rate = min(rate, rings * _TREE_MOST[generation][scale])
    if column == 0:
        row = generation if hosts == 1 else int(amd)
        return min(rate * (0.5 if algorithm == "ring" else 1 / 3.8), _LL_MOST[row][scale])
    if column == 1:
        one_host_tree = algorithm == "tree" and hosts == 1
        share = 7 / 9 if one_host_tree else 0.92 if algorithm == "ring" else 120 / 128
        if algorithm == "ring" and alone:
            share = 0.7
        return min(rate * share, rings * _LL128_MOST[algorithm][generation][scale])
    return rate


def _hops_us(view: View, algorithm: str, column: int) -> tuple[float, float]:
    """Latency of a hop inside a host and of one between hosts."""
    inner = (_NVLINK if view.nvlink else _PCIE)[algorithm][column]
    alone = view.ranks == view.hosts
    return inner, _NET["tree" if alone else algorithm][column]


def _tree_us(view: View, column: int) -> float:
    inner, outer = _hops_us(view, "tree", column)
    levels = view.hosts.bit_length() - 1
    return _BASE["tree"][column] + 2 * ((view.ranks // view.hosts - 1) * inner + levels * outer)


def _ring_us(view: View, collective: str, steps: int, column: int) -> float:
    inner, outer = _hops_us(view, "ring", column)
    if view.hosts > 1:
        inner = max(inner, step_overhead_us(column, amd=view.amd))
    crossings = (view.hosts - 1) * (2 if collective == "allreduce" else 1)
    return _BASE["ring"][column] + (steps - crossings) * inner + crossings * outer
