"""Interface between jobs and networks: all that a training step or a fault knows of a network.

A `Network` moves the bytes of collectives for every job of one scenario, under one simpy
environment. `sim.network.fidelity.make_network` makes it from a `Site`; `flow` is one
implementation. Nothing above this module knows of routes, packets or engines.

How to write one
----------------
**Ranks and channels.** A job asks for one `Communicator`. ``placement`` of its `run` has an array
for each channel: ``placement[channel][rank]`` is a GPU of `Cluster`, which knows its host, NICs and
endpoint. Channels split the plan's bytes evenly and run side by side, each as a plan of its own on
flows of its own (``sockets`` of the `Style` for each edge). Several runs may be under way at once,
of one communicator or of several; they share the network.

**Steps.** A run does what `harp.collectives.ir` says. In a pipeline a piece waits for the pieces
that it passes on, for those before it on its edge, and for a slot of its protocol; in lock step a
rank goes on when its own sends and receives are done (docs/inside/collectives.md).
`harp.collectives.execute` does this with real bytes.

**Time.** `run` is a simpy process that ends when every rank is done. It accounts for all its time
on ``line``, without gaps: ``selection`` for a GPU's own work, which takes ``local_s(cost)`` and is
called once for each phase, since each call occupies the GPU; ``latency`` and ``message`` where they
can be separated; `Timeline.transfer` for the rest, with the limits of the bytes and their times.

**Faults.** A fault first changes the rates of links (`scale`); after its detection and recovery
times routing follows (`avoid`). Link numbers are those of ``cluster.fabric``, one for each
direction. In between, traffic keeps its route, even over a dead link. Both calls give the whole
state, not a change of it. `abandon` marks links that never return: traffic without another path
then ends the simulation with a `CutOffError` instead of waiting. `LinkState` keeps all three.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from typing import Protocol as Interface

from harp.collectives.protocol import SIMPLE

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    import numpy as np
    import simpy
    from numpy.typing import NDArray

    from harp.collectives.collective_plan import Plan
    from harp.collectives.ir import LocalCost
    from harp.collectives.protocol import Protocol
    from sim.cluster.cluster import Cluster
    from sim.network.corrections import Correction
    from sim.network.transport import Style
    from sim.records.results import LinkUse
    from sim.records.timeline_track import Timeline
    from sim.schema.parameters import HostStack
    from sim.schema.scenario_keys import Background

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


class CutOffError(RuntimeError):
    """Traffic waits for links that will never be up again; the message names both its ends."""


class TooLargeError(RuntimeError):
    """A plan is too large to be simulated in reasonable time; the message has its size."""


class Capture(NamedTuple):
    """Packets that leave by one link, as a pcap file."""

    link: str
    """``from->to``, e.g. ``node-0/eth0->leaf0``; of several cables the first."""
    path: str


class NetworkError(RuntimeError):
    """A network cannot be made on this machine, or failed; the message is one sentence."""


@dataclass(frozen=True, eq=False)
class Site:
    """Arguments of a network: a cluster, and its use by one scenario."""

    cluster: Cluster
    stack: HostStack
    style: Style
    seed: int | None = None
    """Seed of the flows' source ports; the file's where not given."""
    records_use: bool = False
    """Keep utilisation over time, for `Network.usage`."""
    selects: bool = False
    """Whether plans of top-k may run, in which GPUs select the largest elements."""
    names_limits: bool = True
    """Name the limits of each transfer."""
    background: tuple[Background, ...] = ()
    """Traffic beside the jobs (`sim.network.background`)."""
    capture: Capture | None = None
    """Link to capture into a file, for networks that have packets."""
    alone: bool = False
    """Whether one communicator runs one plan at a time, without faults."""


class Communicator(Interface):
    """The GPUs of one job as ranks."""

    def announce(self, plan: Plan, placement: Sequence[Ints]) -> None:
        """Announce a plan before anything runs, for networks that plan its paths."""

    def run(self, plan: Plan, placement: Sequence[Ints], local_s: Callable[[LocalCost], float],
            line: Timeline, label: str = "",
            protocol: Protocol = SIMPLE) -> Generator[simpy.Event, None, None]:
        """Run a plan as a simpy process.

        Args:
            plan: what to run.
            placement: for each channel the GPU of each rank.
            local_s: gives the time of a GPU's own work.
            line: its line of the timeline.
            label: its name in the timeline.
            protocol: size and signalling of pieces; the plan's bytes are those on the wire.
        """


class Network(Interface):
    """The network of one scenario; see the module's manual."""

    def communicator(self) -> Communicator:
        """Make one for a job."""

    def scale(self, share: Floats) -> None:
        """Let each link deliver this share of its rate from now on, 0 to 1."""

    def avoid(self, links: Ints) -> None:
        """Route around these links from now on, and over all others."""

    def abandon(self, links: Ints) -> None:
        """Mark links that will never be up again."""

    @property
    def waits_for(self) -> str:
        """Reason why traffic waits, if the current links leave no path for some of it."""

    @property
    def busy(self) -> bool:
        """Whether bytes are in flight."""

    @property
    def carried(self) -> float:
        """Sum of what all resources have carried; it grows if and only if something moves."""

    @property
    def remembers(self) -> bool:
        """Whether a step may differ from the one before it, though jobs and links are the same.

        It may where tokens of a burst are left, or queues, or where other traffic comes at random.
        """

    @property
    def begins_cold(self) -> bool:
        """Whether new connections are slow, so that a job's first step says nothing of the rest."""

    @property
    def effort(self) -> int:
        """Work so far beside the clock's events, in equivalent events.

        It is the same on every machine, since the number of draws depends on it.
        """

    @property
    def corrections(self) -> Sequence[Correction]:
        """Known errors of its times that are at work."""

    @property
    def notes(self) -> Sequence[str]:
        """Sentences for the reader."""

    def usage(self, step_s: tuple[float, float]) -> LinkUse | None:
        """Utilisation during one step, from start to end; None where it was not recorded."""

    def forget(self, before_s: float) -> None:
        """Drop records that only `usage` of times before ``before_s`` needs."""

    def close(self) -> None:
        """Release everything that it holds outside this process."""
