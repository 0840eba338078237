"""Networks and clocks by the names of fidelities."""

from __future__ import annotations

from contextlib import closing

import pytest
import simpy

from sim.answer.scenario import Settings, run_scenario
from sim.network.fidelity import NETWORKS, make_network, wall_clock
from sim.network.interface import Network, Site
from sim.network.transport import Style
from sim.network.wall_clock import WallClock
from sim.schema.parameters import load_stack
from tests.support.cluster_files import cluster

PROPERTIES = [name for name, member in vars(Network).items() if isinstance(member, property)]


def test_only_the_laboratory_runs_by_the_wall_clock(tmp_path):
    topology = cluster(tmp_path, lab={"scale": "1/50"}).topology
    for fidelity in NETWORKS:
        clock = wall_clock(fidelity, topology)
        assert isinstance(clock, WallClock) == (fidelity == "lab")
        assert clock is None or clock.scale == pytest.approx(0.02)


@pytest.mark.parametrize("fidelity", ["flow", "packet", "steady"])
def test_a_new_network_is_quiet_and_offers_all_that_the_interface_has(tmp_path, fidelity):
    built = cluster(tmp_path, scenario={"stack": "harp"})
    site = Site(built, load_stack("harp", built.topology.stacks), Style(),
                records_use=False)
    env = simpy.Environment()
    with closing(make_network(fidelity, env, site)) as network:
        assert network.communicator() is not network.communicator()
        env.run()
        assert not network.busy
        assert network.carried == 0
        assert not network.waits_for
        assert list(network.corrections) == []
        assert network.usage((0.0, 1.0)) is None
        for name in PROPERTIES:
            assert hasattr(network, name), name


def test_fidelities_agree_on_a_step(tmp_path):
    built = cluster(tmp_path, scenario={"stack": "harp"}, rate_bps=10e9,
                    workload={"model": "deepfm", "batch": 128, "framework": "free"})
    steps_s = [run_scenario(built, built.topology.scenarios[0], 2,
                            Settings(fidelity=fidelity))[0].step_s
               for fidelity in ("flow", "packet", "steady")]
    assert steps_s[1:] == pytest.approx([steps_s[0]] * 2, rel=0.05)
