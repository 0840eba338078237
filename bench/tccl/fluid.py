"""Two hosts with two ports each as a fluid: the network of scenes at fidelity flow.

Broadcasts of two ranks follow one another without end over a dynamic bond. How long HARP takes to
find a dead path is a parameter here (`FOUND_S`). A link that loses a share of its packets carries
the rest, as if congestion control took none of it for a queue; what carries no data or no answers
is dead. Order and MTU are unknown to a fluid, so those scenes are not there (`Scene.fluid`), nor is
TCP.
Goodput is what all resources carry, by what they carried before.
"""

from __future__ import annotations

import tempfile
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import simpy

from bench.tccl.goodput import BIN_S, Run, Trace
from harp.collectives.registry import make_plan
from sim.answer.scenario import Settings
from sim.cluster.cluster import Cluster
from sim.network.fidelity import make_network
from sim.network.interface import Site
from sim.network.transport import Style
from sim.records.timeline_track import Timeline
from sim.schema import load
from sim.step.faults import find_links

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bench.tccl.scenes import Scene

FOUND_S = 3e-3
"""From a fault to traffic elsewhere: three timeouts of a millisecond, docs/inside/session.md."""
RATE_BPS = 25e9
MESSAGE = 2 << 20
STREAMS = 4
"""Side by side, so that no latency between two messages is idle time."""
TOPOLOGY = """
name: two-ports
hosts:
  - name: host
    count: 2
    gpus: {count: 1, model: A100, effective: 140TFLOPS}
    nvlink: {rate: 200GB/s, latency: 1us}  # of no account: a host has one GPU
    pcie: {rate: 200GB/s, latency: 1us}
    nics: [{name: eth, rate: 25Gbps, ports: 2, bond: dynamic}]
fabric: {template: dual-tor, pairs: 1, spines: 1, rate: 25Gbps, latency: 1us}
workload: {model: resnet50, batch: 32, framework: ddp}
scenarios: [{name: both ports, stack: rdma}]
"""
CABLE = "host-0/eth0"
TORS = ("tor0a", "tor0b")
TOR = TORS[1]


class Fluid:
    """The network, with a part of the verbs of `bench.tccl.scenes.Network`."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "two-ports.yaml")
            file.write_text(TOPOLOGY)
            topology = load(file)
        self.cluster = Cluster(topology)
        scenario = topology.scenarios[0]
        stack = Settings().stack(topology, scenario.stack)
        self.env = simpy.Environment()
        self.network = make_network("flow", self.env, Site(
            self.cluster, stack, Style.of(scenario, topology, stack.name), names_limits=False))
        self._share = np.ones(len(self.cluster.fabric.link_src))

    def send_forever(self) -> simpy.events.ProcessGenerator:
        """Broadcast from host to host, again and again."""
        ranks = [np.arange(2)]
        plan = make_plan("broadcast", ranks=2, nbytes=MESSAGE, unit_bytes=4, group=1,
                         chunk_bytes=1 << 20)
        line = Timeline(self.env, lambda _: None, "two ports")
        communicator = self.network.communicator()
        while True:
            yield from communicator.run(plan, ranks, lambda _: 0.0, line)

    def _links(self, *ends: str) -> NDArray[np.int64]:
        fabric = self.cluster.fabric
        return np.unique(np.concatenate([find_links(fabric, end) for end in ends]))

    def _set(self, links: NDArray[np.int64], share: float) -> None:
        self._share[links] = share
        self.network.scale(self._share.copy())
        down = np.flatnonzero(self._share == 0)
        if share in (0.0, 1.0):
            self.env.process(self._find_out(down))

    def _find_out(self, down: NDArray[np.int64]) -> simpy.events.ProcessGenerator:
        yield self.env.timeout(FOUND_S if len(down) else 0.0)
        self.network.avoid(down)

    def set_cable(self, *, up: bool) -> None:
        """See `bench.tccl.scenes.Network`."""
        self._set(self._links(f"{CABLE}-{TOR}"), float(up))

    def set_tor(self, *, up: bool) -> None:
        """See `bench.tccl.scenes.Network`."""
        self._set(self._links(*(f"host-{host}/eth0-{TOR}" for host in range(2))), float(up))

    def remove_nic(self) -> None:
        """See `bench.tccl.scenes.Network`."""
        self.set_cable(up=False)

    def set_rate(self, share: float) -> None:
        """See `bench.tccl.scenes.Network`."""
        self._set(self._links(f"{TOR}->host-1/eth0"), share)

    def lose(self, share: float, *, answers: bool = False) -> None:
        """See `bench.tccl.scenes.Network`."""
        del answers  # without them the path is as dead as without data
        self._set(self._links(f"{CABLE}->{TOR}"), 1 - share)

    def corrupt(self, share: float) -> None:
        """See `bench.tccl.scenes.Network`."""
        self.lose(share)

    def slow_receiver(self, share: float) -> None:
        """See `bench.tccl.scenes.Network`."""
        self._set(self._links(*(f"{tor}->host-1/eth0" for tor in TORS)), share)


def run_flow(scene: Scene) -> Run:
    """Play a scene with one transfer over a dynamic bond."""
    net = Fluid()
    for _ in range(STREAMS):
        net.env.process(net.send_forever())
    moments = deque(scene.moments)
    carried = [0.0]
    for number in range(1, round(scene.end_s / BIN_S) + 1):
        if moments and moments[0].at_s < number * BIN_S - 1e-9:
            # Its scenes have no other fault than it knows.
            moments.popleft().action(net)  # type: ignore[arg-type]
        net.env.run(number * BIN_S)
        carried.append(net.network.carried)
    bits = np.diff(carried) * 8
    before = bits[:round(scene.moments[0].at_s / BIN_S)].mean() / BIN_S
    return Run(Trace(bits.tolist()), [], float(before), 0, "",
               [moment.at_s for moment in scene.moments])
