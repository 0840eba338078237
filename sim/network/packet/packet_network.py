"""The network of fidelity `packet`: routes and costs from the transport, sessions at the ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.network.background import BackgroundTraffic
from sim.network.limits import LimitWatch
from sim.network.packet import assumptions
from sim.network.packet.packet_communicator import PacketCommunicator
from sim.network.packet.packet_refusals import refuse_unknown
from sim.network.packet.repeats import Repeats
from sim.network.packet.tcp_carrier import TcpCarrier
from sim.network.packet.timed_world import TimedWorld
from sim.network.transport import Transport

if TYPE_CHECKING:
    import simpy
    from numpy.typing import NDArray

    from sim.network.corrections import Correction
    from sim.network.interface import Capture, Site
    from sim.records.results import LinkUse

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


class PacketNetwork:
    """See `sim.network.interface.Network`.

    Args:
        env: the simpy environment.
        site: what it simulates.
        repeats: whether collectives that repeat themselves may take the times of those before.
    """

    def __init__(self, env: simpy.Environment, site: Site, *, repeats: bool = False) -> None:
        refuse_unknown(site)
        self.transport = Transport(site.cluster, site.stack, site.style, site.seed)
        self.timed = TimedWorld(env, self.transport, records_use=site.records_use)
        self._limits = LimitWatch(site.cluster, self.timed.usage.used_s) if (
            site.names_limits) else None
        self._communicators: list[PacketCommunicator] = []
        self._background = BackgroundTraffic(env, self.transport, site.background,
                                             TcpCarrier(self.transport, self.timed))
        self._repeats = Repeats(env, self.timed.stand, lambda: self.timed.world.counts().lost) if (
            repeats and is_steady(site)) else None
        self._tell_paths()
        self._notes: list[str] = []
        self._captures = site.capture is not None
        if site.capture is not None:
            self._capture(site, site.capture)

    def _capture(self, site: Site, capture: Capture) -> None:
        link = site.cluster.fabric.links_by_name[capture.link][0]
        self.timed.world.capture(link, capture.path, assumptions.CAPTURE_BYTES)

    def _tell_paths(self) -> None:
        if self.transport.style.routing == "spray":
            self.timed.world.set_paths(self.transport.links.fabric.next_hops)

    def communicator(self) -> PacketCommunicator:
        """Make one for a job."""
        made = PacketCommunicator(self.transport, self.timed, self._limits, self._repeats)
        self._communicators.append(made)
        return made

    def scale(self, share: Floats) -> None:
        """Let each link deliver this share of its rate; sessions find out by themselves."""
        links = self.transport.links
        changed = np.flatnonzero(share != links.share)
        links.scale(share)
        self.timed.change(changed, links.whole.link_bps[changed] * share[changed])

    def avoid(self, links: Ints) -> None:
        """Route everything anew, around these links."""
        self.transport.links.avoid(links)
        self._tell_paths()
        for communicator in self._communicators:
            communicator.reroute()
        self._background.reroute()

    def abandon(self, links: Ints) -> None:
        """Mark links that will never be up again."""
        self.transport.links.abandon(links)

    @property
    def waits_for(self) -> str:
        """Reason why traffic waits, if no path is left for some of it."""
        return self.transport.waits_for

    @property
    def busy(self) -> bool:
        """Whether a collective runs."""
        return self.timed.running > 0

    @property
    def carried(self) -> float:
        """Frames with payload that have arrived."""
        return float(self.timed.world.counts().data)

    @property
    def remembers(self) -> bool:
        """Sessions remember what they have learned of their paths."""
        return True

    @property
    def begins_cold(self) -> bool:
        """Every step is simulated, and counts."""
        return False

    @property
    def effort(self) -> int:
        """Events of the world."""
        return int(self.timed.world.counts().events)

    @property
    def corrections(self) -> tuple[Correction, ...]:
        """None are known."""
        return ()

    @property
    def notes(self) -> list[str]:
        """Flows that ``routing: plan`` cannot steer, and the end of an incomplete capture."""
        repeats = self._repeats.notes if self._repeats is not None else []
        return [*self.transport.plan.notes, *self._notes, *repeats]

    def usage(self, step_s: tuple[float, float]) -> LinkUse | None:
        """Utilisation of the busiest resources during one step."""
        return self.timed.usage.result(step_s)

    def forget(self, before_s: float) -> None:
        """Drop samples that only times before ``before_s`` need."""
        self.timed.usage.forget(before_s)

    def close(self) -> None:
        """Close a capture."""
        if self._captures and not self.timed.world.end_capture():
            self._notes.append(f"The capture ends after {assumptions.CAPTURE_BYTES >> 20} MiB.")
        self._captures = False


class SteadyNetwork(PacketNetwork):
    """Fidelity `steady`: packets, but for what repeats itself (`sim.network.packet.repeats`)."""

    def __init__(self, env: simpy.Environment, site: Site) -> None:
        super().__init__(env, site, repeats=True)


def is_steady(site: Site) -> bool:
    """Whether only what collectives do changes the network, and nobody looks at its packets."""
    topology = site.cluster.topology
    return not (site.background or topology.faults or site.records_use or site.capture
                or (topology.vpc is not None and topology.vpc.burst is not None))
