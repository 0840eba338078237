"""Utilisation of the cluster's resources over time, from the counters of links and servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.network.utilisation import LinkRecorder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sim.cluster.cluster import Cluster
    from sim.network.packet.packet_world import World
    from sim.records.results import LinkUse

    Floats = NDArray[np.float64]

SAMPLE_NS = 100_000
"""Between two samples: a step of some ten milliseconds has some hundred of them."""


class Usage:
    """Samples of a world; times are the world's.

    Args:
        cluster: names the resources.
        capacity: float64[resources], of the transport.
        world: the packet network; its first links are the fabric's.
        records: whether samples are taken.
    """

    def __init__(self, cluster: Cluster, capacity: Floats, world: World, *,
                 records: bool) -> None:
        self.records = records
        self._world, self._links = world, cluster.blocks["link"]
        highest = capacity.copy()
        vpc = cluster.topology.vpc
        if vpc is not None and vpc.burst is not None:
            hosts = np.arange(cluster.hosts)
            for way in ("out", "in"):
                highest[cluster.blocks[f"host_{way}"][hosts]] = vpc.burst.rate / 8
        self._recorder = LinkRecorder(cluster, highest)
        self._highest = highest
        self._servers: dict[int, tuple[int, float]] = {}
        self._next_ns = 0

    def watch(self, resource: int, server: int, cost: float) -> None:
        """Register the server of a resource; a byte of payload uses ``cost`` units of it."""
        self._servers[resource] = server, cost

    def limit(self, until_ns: int) -> int:
        """Until when the world may run before the next sample."""
        return min(until_ns, max(self._next_ns, self._world.now_ns))

    def sample(self) -> None:
        """Take a sample, if it is time to."""
        now_ns = self._world.now_ns
        if now_ns < self._next_ns:
            return
        self._next_ns = now_ns + SAMPLE_NS
        self._recorder.sample(now_ns * 1e-9, self.carried())

    def carried(self) -> Floats:
        """Load that each resource has carried so far, in its own unit."""
        by_link, by_server = self._world.carried()
        carried = np.zeros(len(self._highest))
        links = self._links[np.arange(len(self._links.capacity))]
        carried[links] = by_link[:len(links)]
        for resource, (server, cost) in self._servers.items():
            carried[resource] = cost * float(by_server[server])
        return carried

    def used_s(self) -> Floats:
        """Seconds for which each resource has been used so far."""
        return self.carried() / self._highest

    def result(self, step_s: tuple[float, float]) -> LinkUse | None:
        """See `sim.network.interface.Network.usage`."""
        if not self.records:
            return None
        self._next_ns = 0
        self.sample()
        return self._recorder.result(step_s)

    def forget(self, before_s: float) -> None:
        """See `sim.network.interface.Network.forget`."""
        self._recorder.forget(before_s)
