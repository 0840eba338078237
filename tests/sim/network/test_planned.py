"""``routing: plan`` for all jobs together, and what cannot be planned is said."""

from __future__ import annotations

import numpy as np
import pytest

from sim.answer.scenario import run_scenario
from sim.network.planned import SharedPlan
from tests.support.cluster_files import cluster, topology, write
from tests.support.sim_runs import rows_of

FABRIC = {"template": "leaf-spine", "leaves": 2, "spines": 2, "rate": "10Gbps"}
JOBS = [{"name": "a", "hosts": ["h-0", "h-2"]}, {"name": "b", "hosts": ["h-1", "h-3"]}]


def steps_s(folder, **scenario):
    """Step of each job; both send across, and there are as many spines as jobs."""
    built = cluster(folder, hosts=4, rate_bps=10e9, fabric=FABRIC, jobs=JOBS,
                    scenario={"affinity": False, **scenario})
    row = built.topology.scenarios[0]
    return [result.step_s for result in run_scenario(built, row, 4)]


@pytest.mark.parametrize("allreduce", ["ring", "tree", "2d"])
def test_two_jobs_are_planned_together(tmp_path, allreduce):
    """Planned one after the other, both would take the first spine and get half of it."""
    given = {"allreduce": allreduce, "routing": "plan"}
    (alone_s,) = steps_s(tmp_path, jobs=["a"], **given)
    assert steps_s(tmp_path, **given) == pytest.approx([alone_s, alone_s], rel=1e-6)


def test_paths_of_some_are_those_that_were_planned_for_all(tmp_path):
    fabric = cluster(tmp_path, hosts=4, fabric=FABRIC).fabric
    plan = SharedPlan()
    plan.announce(np.array([0, 0]), np.array([2, 2]))
    plan.announce(np.array([1]), np.array([3]))
    first = plan.paths(fabric, np.array([0, 0]), np.array([2, 2])).links
    second = plan.paths(fabric, np.array([1]), np.array([3])).links
    spines = [tuple(row[1:3]) for row in (*first.tolist(), *second.tolist())]
    assert len(set(spines[:2])) == 2
    again = plan.paths(fabric, np.array([0]), np.array([2])).links
    assert again.tolist() == first[:1].tolist()


def test_flows_that_nobody_announced_are_planned_by_themselves(tmp_path):
    fabric = cluster(tmp_path, hosts=4, fabric=FABRIC).fabric
    plan = SharedPlan()
    plan.announce(np.array([0, 1]), np.array([2, 3]))
    assert len(plan.paths(fabric, np.array([3]), np.array([0])).links) == 1


def notes_of(folder, **given):
    return rows_of(write(folder, topology(**given)))[-1]["notes"]


def test_ports_of_kernel_tcp_cannot_be_planned_and_that_is_said(tmp_path):
    (note,) = notes_of(tmp_path, hosts=2, scenario={"routing": "plan", "stack": "kernel-tcp"})
    assert note.startswith("not planned: the kernel chooses TCP's source ports")
    assert notes_of(tmp_path, hosts=2, scenario={"routing": "plan"}) == []


def test_too_many_flows_are_hashed_and_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("sim.network.planned.MOST", 3)
    (note,) = notes_of(tmp_path, hosts=4, scenario={"routing": "plan"})
    assert note == "not planned: 4 flows at once are more than 3, so they are hashed"


def test_a_dead_link_moves_the_flows_that_crossed_it_and_no_other(tmp_path):
    fabric = cluster(tmp_path, hosts=16, fabric={**FABRIC, "leaves": 4, "spines": 4}).fabric
    src, dst = np.arange(16), (np.arange(16) + 4) % 16
    plan = SharedPlan()
    plan.announce(src, dst)
    before = plan.paths(fabric, src, dst)
    dead = fabric.links_between("leaf0", "spine1")
    after = plan.paths(fabric.without(dead), src, dst)
    touched = np.isin(before.links, dead).any(axis=1)
    assert touched.any()
    assert not np.isin(after.links, dead).any()
    assert (after.links[~touched] == before.links[~touched]).all()
    assert plan.paths(fabric, src, dst).links.tolist() == before.links.tolist()
