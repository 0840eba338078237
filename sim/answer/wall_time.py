"""How long the laboratory would take for rows, by what fidelity `flow` says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.answer.scenario import run_scenario
from sim.schema.errors import Problem, TopologyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.cluster.cluster import Cluster
    from sim.schema.scenario_keys import Scenario

MOST_S = 1800.0
"""Seconds by the clock for all rows of a run."""


def check_wall_time(cluster: Cluster, rows: Sequence[tuple[Scenario, int]]) -> None:
    """Raise TopologyError where the laboratory would take longer than `MOST_S`."""
    topology = cluster.topology
    step_s = sum(_step_s(cluster, scenario, gpus) for scenario, gpus in rows)
    if step_s / topology.lab.scale > MOST_S:
        raise topology.error(Problem(
            f"the laboratory would take {step_s / topology.lab.scale / 60:,.0f} minutes for these "
            f"{len(rows)} rows at a scale of {topology.lab.scale:g}", path=("lab", "scale"),
            allowed=f"at least {step_s / MOST_S:.1g}, or fewer rows (--scenario)"))


def _step_s(cluster: Cluster, scenario: Scenario, gpus: int) -> float:
    """The steps that are run: one of each job's, for jobs run side by side the longest."""
    try:
        return max(result.step_s for result in run_scenario(cluster, scenario, gpus))
    except TopologyError:
        return 0.0  # whoever runs the row will say why it cannot be run
