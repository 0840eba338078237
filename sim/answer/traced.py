"""The row of a file whose workload is execution traces: replay them once.

A step is one run of the traces, from the first operation to the last of all ranks, and a sample is
one as well. The parts of a step are those of the rank that is done last; efficiency is the mean
share of its time in which a GPU computes. Traces end by themselves, so their events are not
limited.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from sim.answer.clock import Clock
from sim.answer.cost import cost_of
from sim.answer.expectation import find_expect
from sim.cluster.placement import choose_gpus
from sim.records.results import ScenarioResult
from sim.schema.input_errors import Problem, TopologyError
from sim.step.critical_path import critical_path
from sim.traces.execution_trace import load_traces
from sim.traces.replay import Means, replay

if TYPE_CHECKING:
    from pathlib import Path

    from sim.answer.scenario import Settings
    from sim.cluster.cluster import Cluster
    from sim.schema.scenario_keys import Scenario
    from sim.traces.execution_trace import Deps
    from sim.traces.job_trace import JobTrace

FIDELITIES = ("flow", "packet")


class TracedRun:
    """One scenario that replays traces, as `sim.answer.scenario.Run` trains."""

    def __init__(self, cluster: Cluster, scenario: Scenario, gpus: int, settings: Settings,
                 clock: Clock | None = None) -> None:
        topology, keys = cluster.topology, cluster.topology.workload.trace
        assert keys is not None
        if settings.fidelity not in FIDELITIES:
            raise topology.error(Problem(f"fidelity {settings.fidelity} replays no traces",
                                         path=("workload", "trace"), at_key=True,
                                         allowed="flow, packet"))
        self.cluster, self.scenario, self.settings = cluster, scenario, settings
        self.env = clock or Clock(math.inf)
        try:
            self.trace = _read(keys.prefix_path, gpus, keys.deps, keys.groups_path)
        except TopologyError as error:
            raise topology.error(Problem(str(error), path=("workload", "trace"))) from error
        self.means = Means(settings.fidelity, by_flops=keys.by_flops,
                           stack=settings.stack(topology, scenario.stack), seed=settings.seed,
                           records_use=settings.record_links, capture=settings.capture)

    def go(self) -> list[ScenarioResult]:
        """Replay, and return the one result."""
        topology, count = self.cluster.topology, len(self.trace.ranks)
        try:
            found = replay(self.cluster, self.scenario, self.trace, self.means, self.env)
        except TopologyError as error:
            if error.file == topology.name or error.line:
                raise
            raise topology.error(Problem(str(error), path=("workload", "trace"))) from error
        if not found.total_s > 0:
            raise topology.error(Problem("its operations take no time", path=("workload", "trace"),
                                         allowed="traces with durations, FLOPs or transfers"))
        dropped = self.trace.dropped
        notes = (f"{dropped:,} control dependencies name nodes that are not there; they hold "
                 "nothing back",) if dropped else ()
        return [ScenarioResult(
            name=self.scenario.name, gpus=count, job="", images_per_s=1.0 / found.total_s,
            step_s=found.total_s, breakdown=found.breakdown,
            efficiency=sum(rank.compute_s for rank in found.ranks) / (count * found.total_s),
            spans=found.spans, links=found.links,
            expect=find_expect(topology, self.scenario.name, count, ""),
            limits=critical_path(found.spans, (0.0, found.total_s))
            if self.settings.name_limits else (),
            notes=("A sample is one run of the traces", *notes, *found.notes),
            effort=self.env.events + found.effort,
            cost=cost_of(self.cluster, choose_gpus(self.cluster, range(self.cluster.hosts), count,
                                                   affinity=False), 0))]


@lru_cache(maxsize=4)
def _read(prefix: Path, ranks: int, deps: Deps, groups: Path | None) -> JobTrace:
    """Read traces once for all rows and draws of a command."""
    return load_traces(prefix, ranks=ranks, deps=deps, groups=groups)
