"""Utilisation over time against cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import simpy

import sim.network.utilisation
from sim.answer.scenario import Settings, run_scenario
from sim.cluster.cluster import Cluster
from sim.network.flow.timed_fluid import TimedFluid
from sim.network.utilisation import LinkRecorder
from sim.schema import load
from sim.schema.parameters import load_stack
from tests.support.cluster_files import cluster, topology, write

OUT = "h-0/eth0->switch0"


def recorded(made, moves, step_s):
    """Run moves (at, resource, amount) and give each used resource its shares and times."""
    env = simpy.Environment()
    capacity = made.capacities(load_stack("rdma"))
    recorder = LinkRecorder(made, capacity)
    fabric = TimedFluid(env, capacity, on_change=recorder.sample)
    fabric.net.add_routes(np.arange(len(capacity) + 1), np.arange(len(capacity)))

    def move(at_s, resource, amount):
        yield env.timeout(at_s)
        yield fabric.move(resource, amount).done

    for each in moves:
        env.process(move(*each))
    env.run()
    return recorder.result(step_s)


def test_shares_by_hand(tmp_path):
    """1 MB/s: 1 MB from 3 s to 4 s; 2 MB from 6 s on, when the step has half a second left."""
    made = cluster(tmp_path, rate_bps=8e6)
    link = int(made.fabric.links_between("h-0/eth0", "switch0")[0])
    use = recorded(made, [(3.0, link, 1e6), (6.0, link, 2e6)], (1.0, 6.5))
    assert use.names == (OUT,)
    assert use.times_s == pytest.approx([1, 3, 4, 6, 6.5])
    assert use.share == pytest.approx(np.array([[0, 1, 0, 1]]))


def test_the_busiest_comes_first_and_the_unused_not_at_all(tmp_path):
    made = cluster(tmp_path, rate_bps=8e6)
    use = recorded(made, [(0.0, 0, 1e6), (0.0, 2, 2e6)], (0.0, 4.0))
    assert use.names == (made.resource_name(2), made.resource_name(0))
    assert (use.share * np.diff(use.times_s)).sum(axis=1) == pytest.approx([2, 1])


def test_nothing_used_is_no_utilisation(tmp_path):
    assert recorded(cluster(tmp_path), [], (0.0, 1.0)) is None


def test_many_events_are_thinned_without_losing_a_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(sim.network.utilisation, "MOST_SAMPLES", 50)
    made = cluster(tmp_path, rate_bps=8e6)
    moves = [(float(second), 0, 5e5) for second in range(300)]
    use = recorded(made, moves, (0.0, 300.0))
    assert len(use.times_s) < 60
    assert (use.share * np.diff(use.times_s)).sum() == pytest.approx(150)
    assert (use.share <= 1).all()


def test_of_a_large_cluster_those_in_use_are_watched(tmp_path, monkeypatch):
    monkeypatch.setattr(sim.network.utilisation, "MOST_RESOURCES", 2)
    made = cluster(tmp_path, rate_bps=8e6)
    last = len(made.capacities(load_stack("rdma"))) - 1
    use = recorded(made, [(0.0, last, 1.0), (0.0, 1, 1e6)], (0.0, 1.0))
    assert set(use.names) == {made.resource_name(last), made.resource_name(1)}


def test_a_steps_links_carry_what_the_ring_sends(tmp_path):
    """Four hosts: each sends and receives 2·3/4 of the gradients in each of three steps."""
    # A fault that is still to come keeps the steps from counting as all alike.
    later = {"name": "later", "kind": "slow-gpu", "gpu": "h-0/0", "at": "1h", "factor": 0.5}
    data = topology(hosts=4, faults=[later], scenario={
        "steps": 3, "faults": ["later"], "fusion": {"threshold": "0B", "cycle": "0s"}})
    made = Cluster(load(write(tmp_path, data)))
    (result,) = run_scenario(made, made.topology.scenarios[0], 4, Settings(record_links=True))
    use = result.links
    moved = (use.share * np.diff(use.times_s)).sum(axis=1)
    names = [name for name in use.names if "->" in name]
    assert len(names) == 8
    seconds = 2 * 3 / 4 * 138_357_544 * 4 / 12.5e9
    assert moved[[use.names.index(name) for name in names]] == pytest.approx(
        np.full(8, seconds), rel=1e-6)
    assert use.times_s[-1] - use.times_s[0] == pytest.approx(result.step_s)
    # The first samples are those of the last step.
    assert use.times_s[0] == pytest.approx(2 * result.step_s)
