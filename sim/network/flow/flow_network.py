"""The network of fidelity `flow`: routes from the transport, rates from the fluid engine.

`name_limits` names the saturated resources on a flow's route.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.network.background import BackgroundTraffic
from sim.network.flow.flow_communicator import FlowCommunicator
from sim.network.flow.fluid import CEILING
from sim.network.flow.fluid_carrier import FluidCarrier
from sim.network.flow.timed_fluid import TimedFluid, TokenBucket
from sim.network.flow.windows import FAR_S
from sim.network.limits import kinds_of_resources
from sim.network.transport import Transport
from sim.network.utilisation import LinkRecorder
from sim.schema.parameters import StackSet, derives_from

if TYPE_CHECKING:
    from collections.abc import Callable

    import simpy
    from numpy.typing import NDArray

    from sim.cluster.cluster import Cluster
    from sim.network.corrections import Correction
    from sim.network.interface import Site
    from sim.records.results import LinkUse

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

FLOW = "one flow"
"""The ceiling of a flow: the stack's or the VPC's on one five-tuple."""
STALLED = "fault"
"""No resource holds a flow back that crosses a link without capacity."""


def name_limits(cluster: Cluster) -> Callable[[NDArray[np.int32]], str]:
    """A function that names what holds a flow back, given the saturated resources of its route.

    Where several are saturated at once each is named, since none of them alone is worth raising.
    """
    names, kind_of = kinds_of_resources(cluster)

    def name(saturated: NDArray[np.int32]) -> str:
        if not len(saturated):
            return STALLED
        own = [FLOW] if saturated[0] == CEILING else []
        # A route has few resources: a set of so few numbers is faster than numpy's.
        kinds = sorted(set(kind_of[saturated[len(own):]].tolist()))
        return " + ".join(own + [names[kind] for kind in kinds])

    return name


LINKS = 4
"""Links of a short path between hosts; a longer one has them, too."""
EDGES_AN_EVENT = 20
"""Edges timed or flows started in the time of one event of the clock (python -m bench sim)."""


class FlowNetwork:
    """See `sim.network.interface.Network`."""

    def __init__(self, env: simpy.Environment, site: Site) -> None:
        cluster = site.cluster
        self.transport = Transport(cluster, site.stack, site.style, site.seed)
        self._buckets = token_buckets(cluster)
        self._recorder = self._make_recorder(cluster) if site.records_use else None
        self.fluid = TimedFluid(
            env, self.transport.capacity, buckets=self._buckets,
            on_change=self._recorder.sample if self._recorder else None,
            name_limit=name_limits(cluster) if site.names_limits else None)
        self._communicators: list[FlowCommunicator] = []
        self._carrier = FluidCarrier(self.transport, self.fluid)
        self._background = BackgroundTraffic(env, self.transport, site.background, self._carrier)
        self._has_background = bool(site.background)
        self._alone = site.alone and not (self._buckets or self._has_background)

    def _make_recorder(self, cluster: Cluster) -> LinkRecorder:
        highest = self.transport.capacity.copy()
        for bucket in self._buckets:
            highest[bucket.resource] = bucket.burst
        return LinkRecorder(cluster, highest)

    def communicator(self) -> FlowCommunicator:
        """Make one for a job."""
        made = FlowCommunicator(self.transport, self.fluid, alone=self._alone)
        self._communicators.append(made)
        return made

    def scale(self, share: Floats) -> None:
        """Let each link deliver this share of its rate; bonds follow what they know of it."""
        links, block = self.transport.links, self.transport.cluster.blocks["link"]
        changed = np.flatnonzero(share != links.share)
        known = links.scale(share)
        self.fluid.change(block[changed], block.capacity[changed] * share[changed])
        if known:
            self._reroute()

    def avoid(self, links: Ints) -> None:
        """Route everything anew, around these links."""
        self.transport.links.avoid(links)
        self._reroute()

    def abandon(self, links: Ints) -> None:
        """Mark links that will never be up again."""
        self.transport.links.abandon(links)

    def _reroute(self) -> None:
        for communicator in self._communicators:
            communicator.reroute()
        self._background.reroute()

    @property
    def waits_for(self) -> str:
        """Reason why traffic waits, if no path is left for some of it."""
        return self.transport.waits_for

    @property
    def busy(self) -> bool:
        """Whether there are flows."""
        return self.fluid.net.flows > 0

    @property
    def carried(self) -> float:
        """Load that all resources have carried so far."""
        return float(self.fluid.net.carried().sum())

    @property
    def remembers(self) -> bool:
        """Whether there are bursts, with tokens left over, or background traffic."""
        return self.fluid.has_buckets or self._has_background

    @property
    def begins_cold(self) -> bool:
        """Whether there may be paths so long that windows of kernel TCP count."""
        latency_s = self.transport.links.whole.link_latency_s.max(initial=0.0)
        return bool(self.transport.style.congestion is not None
                    and 2 * LINKS * latency_s >= FAR_S)

    @property
    def effort(self) -> int:
        """Edges and flows handled, in events."""
        handled = sum(each.handled for each in self._communicators) + self._carrier.begun
        return handled // EDGES_AN_EVENT

    @property
    def corrections(self) -> list[Correction]:
        """Known errors of the times; none for stacks that packet does not model."""
        stack, topology = self.transport.stack.name, self.transport.cluster.topology
        if derives_from(stack, "rdma", topology.stacks, "stacks", StackSet):
            return []
        return sorted(set().union(*(each.corrections for each in self._communicators)))

    @property
    def notes(self) -> list[str]:
        """Flows that ``routing: plan`` cannot steer, and known errors of the times."""
        tcp = self.transport.style.congestion is not None
        return [*self.transport.plan.notes,
                *(correction.sentence(tcp=tcp) for correction in self.corrections)]

    def usage(self, step_s: tuple[float, float]) -> LinkUse | None:
        """Utilisation of the busiest resources during one step."""
        return self._recorder.result(step_s) if self._recorder else None

    def forget(self, before_s: float) -> None:
        """Drop samples that only times before ``before_s`` need."""
        if self._recorder:
            self._recorder.forget(before_s)

    def close(self) -> None:
        """Nothing is held."""


def token_buckets(cluster: Cluster) -> tuple[TokenBucket, ...]:
    """The VPC's token buckets: each host's cap, out and in."""
    vpc = cluster.topology.vpc
    if vpc is None or vpc.burst is None or vpc.host_rate is None:
        return ()
    return tuple(TokenBucket(int(cluster.blocks[f"host_{way}"][host]), vpc.host_rate / 8,
                             vpc.burst.rate / 8, vpc.burst.bucket)
                 for way in ("out", "in") for host in range(cluster.hosts))
