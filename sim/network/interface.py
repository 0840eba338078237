"""The seam between jobs and networks: all that a training step or a fault knows of a network.

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
rank goes on when its own sends and receives are done (docs/collectives.md).
`harp.collectives.execute` does this with real bytes.

**Time.** `run` is a simpy process that ends when every rank is done. It accounts for all its time
on ``line``, without gaps: ``selection`` for a GPU's own work, which takes ``local_s(cost)`` and is
asked once a phase, since the GPU is charged for each call; ``latency`` and ``message`` where they
can be told apart; `Timeline.transfer` for all else, with what held the bytes back and from when on.

**Faults.** A fault first changes what links deliver (`scale`); after its detection and recovery
times routing follows (`avoid`). Link numbers are those of ``cluster.fabric``, each one way. In
between, traffic goes where it went: onto a dead link, too. Both calls give the whole state, not a
change of it. `abandon` says that links will never be back: traffic that then has no way left ends
the simulation with a `CutOffError` instead of waiting. `LinkState` keeps all three.
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
    from sim.records.timeline import Timeline
    from sim.schema.parameters import HostStack
    from sim.schema.scenario_keys import Background

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


class CutOffError(RuntimeError):
    """Traffic waits for links that will never be up again; the message names both its ends."""


class TooLargeError(RuntimeError):
    """A plan is more than a network can move in reasonable time; the message says how much."""


class Capture(NamedTuple):
    """Packets that leave by one link, as a pcap file."""

    link: str
    """``from->to``, e.g. ``node-0/eth0->leaf0``; of several cables the first."""
    path: str


class NetworkError(RuntimeError):
    """A network cannot be made here, or broke down; the message is one sentence."""


@dataclass(frozen=True, eq=False)
class Site:
    """What a network is made for: a cluster, and how one scenario uses it."""

    cluster: Cluster
    stack: HostStack
    style: Style
    seed: int | None = None
    """Chooses the source ports of flows; the file's where not given."""
    records_use: bool = False
    """Keep utilisation over time, for `Network.usage`."""
    selects: bool = False
    """Whether plans of top-k may run, for which GPUs select the largest elements."""
    names_limits: bool = True
    """Say what holds each transfer back."""
    background: tuple[Background, ...] = ()
    """Traffic beside the jobs (`sim.network.background`)."""
    capture: Capture | None = None
    """What to write into a file, for networks that have packets."""


class Communicator(Interface):
    """The GPUs of one job as ranks."""

    def announce(self, plan: Plan, placement: Sequence[Ints]) -> None:
        """Say before anything runs that a plan will, for networks that plan its paths."""

    def run(self, plan: Plan, placement: Sequence[Ints], local_s: Callable[[LocalCost], float],
            line: Timeline, label: str = "",
            protocol: Protocol = SIMPLE) -> Generator[simpy.Event, None, None]:
        """Run a plan as a simpy process.

        Args:
            plan: what to run.
            placement: for each channel the GPU of each rank.
            local_s: gives the time of a GPU's own work.
            line: where it stands in the timeline.
            label: what the timeline calls it.
            protocol: how pieces are cut and told; the plan's bytes are those on the wire.
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
        """Take note that these links will never be back."""

    @property
    def waits_for(self) -> str:
        """Why traffic waits, where no way was left for some of it as the links are now."""

    @property
    def busy(self) -> bool:
        """Whether bytes are on their way."""

    @property
    def carried(self) -> float:
        """What all resources have carried so far: it grows if and only if something moves."""

    @property
    def remembers(self) -> bool:
        """Whether a step may differ from the one before it, though jobs and links are the same.

        It may where tokens of a burst are left, or queues, or where other traffic comes at random.
        """

    @property
    def effort(self) -> int:
        """What it has done so far beside the clock's events, counted as if it were events.

        The same on every machine: how many draws are made depends on it.
        """

    @property
    def corrections(self) -> Sequence[Correction]:
        """Causes at work by which its times are known to be off."""

    @property
    def notes(self) -> Sequence[str]:
        """Sentences for the reader."""

    def usage(self, step_s: tuple[float, float]) -> LinkUse | None:
        """Utilisation during one step, from start to end; None where it was not recorded."""

    def forget(self, before_s: float) -> None:
        """Drop what only `usage` of times before ``before_s`` needs."""

    def close(self) -> None:
        """Give back what it holds outside this process."""
