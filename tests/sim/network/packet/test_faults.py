"""Faults and several jobs at fidelity packet, held against flow; sessions find dead ports alone."""

from __future__ import annotations

from functools import cache

import pytest

from sim.answer.scenario import Settings
from sim.cluster.cluster import Cluster
from sim.schema import load
from tests.support import ROOT
from tests.support.sim_runs import run_all

FILE = ROOT / "tests" / "data" / "samples" / "packet-faults.yaml"
SCENARIOS = [scenario.name for scenario in load(FILE).scenarios]


@cache
def steps_s(fidelity: str) -> dict[tuple[str, str], float]:
    cluster = Cluster(load(FILE))
    rows = run_all(cluster, cluster.topology.scenarios, Settings(fidelity=fidelity))
    return {(row.name, row.job): row.step_s for row in rows}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_faults_cost_what_they_cost_in_flow(scenario: str) -> None:
    for (name, job), packet_s in steps_s("packet").items():
        if name == scenario:
            assert packet_s == pytest.approx(steps_s("flow")[name, job], rel=0.12), job


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name not in ("calm", "alone")])
def test_only_the_job_at_the_dead_port_suffers(scenario: str) -> None:
    packet = steps_s("packet")
    assert packet[scenario, "one"] > 1.15 * packet["calm", "one"]
    assert packet[scenario, "two"] < 1.1 * packet["calm", "two"]
