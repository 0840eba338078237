"""Times of collectives that run alone, one after the other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from harp.collectives.protocol import SIMPLE
from sim.answer.clock import Clock
from sim.network.fidelity import make_network, wall_clock
from sim.network.interface import Site
from sim.network.transport import Style
from sim.records.results import Limit
from sim.records.timeline_track import Timeline
from sim.step.critical_path import cause, mean_path

if TYPE_CHECKING:
    from harp.collectives.collective_plan import Plan
    from harp.collectives.protocol import Protocol
    from sim.cluster.cluster import Cluster
    from sim.cluster.placement import Placement
    from sim.records.results import Span
    from sim.schema.parameters import HostStack
    from sim.schema.scenario_keys import Background, Scenario

SETTLE_S = 0.01
"""Wait before a run beside background traffic. Several flows take this long at 10 Gb/s, so some are
under way when the run begins."""


class Timer:
    """Times plans one after the other on one idle cluster; bursts keep their remaining tokens.

    Beside background traffic each plan has a network of its own, in which it runs twice: first to
    open its connections, and then for its time, when a whole number of `SETTLE_S` is over. So all
    plans meet the same flows.
    """

    def __init__(self, cluster: Cluster, stack: HostStack, scenario: Scenario,
                 placement: Placement, *, fidelity: str = "flow",
                 background: tuple[Background, ...] = (), seed: int | None = None,
                 explain: bool = False) -> None:
        style = Style.of(scenario, cluster.topology, stack.name)
        self._launch_s = (stack.launch.value if stack.launch is not None and fidelity != "lab"
                          else 0.0)
        self._site = Site(cluster, stack, style, seed, names_limits=explain,
                          background=background, alone=True)
        self._placement, self._fidelity, self._explain = placement, fidelity, explain
        self._spans: list[Span] = []
        self._spent = 0
        self._build()

    def _build(self) -> None:
        self._clock = Clock(math.inf)
        self.env = wall_clock(self._fidelity, self._site.cluster.topology) or self._clock
        self.network = make_network(self._fidelity, self.env, self._site)
        self._comm = self.network.communicator()
        self._line = Timeline(self.env, self._spans.append if self._explain else lambda _: None,
                              "collective")

    @property
    def effort(self) -> int:
        """Cost of all runs so far, in events."""
        return self._spent + self._clock.events + self.network.effort

    @property
    def limits(self) -> tuple[Limit, ...]:
        """Causes of the last run's time, the longest first; nothing unless it is explained."""
        launch = [Limit("launch", self._launch_s)] if self._launch_s else []
        return mean_path([(*launch, *(Limit(cause(span), span.end_s - span.start_s)
                                      for span in self._spans))])

    def seconds(self, plan: Plan, protocol: Protocol = SIMPLE, channels: int = 0) -> float:
        """Time of one run of ``plan``, on the first ``channels``, or on all where 0.

        The launch is part of it, but of real runs (fidelity lab), which launch nothing.
        """
        if self._site.background:
            self._spent = self.effort
            self.close()
            self._build()
            self._run(plan, protocol, channels)
            self.env.run(SETTLE_S * (math.floor(self.env.now / SETTLE_S) + 1))
        start_s = self.env.now
        self._spans.clear()
        self._run(plan, protocol, channels)
        return self._launch_s + float(self.env.now - start_s)

    def close(self) -> None:
        """Let go of the network."""
        self.network.close()

    def _run(self, plan: Plan, protocol: Protocol, channels: int) -> None:
        placement = self._placement.of(plan.name)
        self.env.run(self.env.process(self._comm.run(
            plan, placement[:channels or len(placement)], lambda _: 0.0, self._line,
            protocol=protocol)))
