"""Runs of the simulator that several tests share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.answer.answer import answer
from sim.answer.scenario import Settings, run_scenario
from sim.cluster.cluster import Cluster
from sim.network.flow.collective_steps import Edges
from sim.report.export import report_json
from sim.schema import load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from sim.network.flow.collective_steps import Router
    from sim.network.flow.fluid import Fluid
    from sim.network.transport import Transport
    from sim.records.results import ScenarioResult
    from sim.schema.scenario_keys import Scenario

    Ints = NDArray[np.int64]


def run_all(cluster: Cluster, scenarios: Sequence[Scenario],
            settings: Settings | None = None) -> list[ScenarioResult]:
    """Simulate scenarios at all their numbers of GPUs, in the file's order."""
    return [result for scenario in scenarios
            for gpus in cluster.topology.gpu_counts(scenario)
            for result in run_scenario(cluster, scenario, gpus, settings or Settings())]


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Give a file's rows as ``sim.run --json --draws 0`` writes them.

    The command would also search for keys without effect, which takes longer than the rows.
    """
    cluster = Cluster(load(path))
    report = answer(cluster, cluster.topology.scenarios, draws=0)
    found: list[dict[str, Any]] = json.loads(report_json(report))["scenarios"]
    return found


def route_over(transport: Transport, net: Fluid, placement: Ints) -> Router:
    """Edges between GPUs as the transport has them; ``placement[rank]`` is a rank's GPU."""
    def router(src: Ints, dst: Ints) -> Edges:
        paths = transport.paths(placement[src], placement[dst])
        every = np.arange(paths.edges)
        first = net.add_routes(*paths.footprints(every, np.ones(paths.edges)))
        return Edges((first + every).astype(np.int32), paths.ceiling, paths.alpha_s,
                     paths.message_s)
    return router
