"""Repair of plans after failures: dead links are left, and few flows move."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.routing.planner import plan_paths, replan
from harp.routing.templates import Endpoints, Wires, leaf_spine
from tests.support.levels import draws
from tests.support.planned_fabrics import FABRICS, between_switches, derangement, seeds


@settings(deadline=None, max_examples=draws(40))
@given(st.sampled_from(sorted({*FABRICS} - {"single"})), seeds, st.integers(1, 2))
def test_after_failures_no_flow_is_lost_or_uses_a_dead_link(name, seed, failures):
    fabric = FABRICS[name](Wires())
    count = len(fabric.endpoints)
    plan = plan_paths(fabric, np.arange(count), derangement(seed, count))
    used = between_switches(fabric, plan.links)
    dead = np.random.default_rng(seed).choice(used, failures, replace=False)
    degraded = fabric.without(np.concatenate([dead, dead ^ 1]))
    repaired = replan(plan, degraded)
    repaired.verify(degraded)
    assert np.array_equal(repaired.src, plan.src)
    assert np.array_equal(repaired.dst, plan.dst)
    assert not np.isin(repaired.links, np.concatenate([dead, dead ^ 1])).any()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", sorted({*FABRICS} - {"single"}))
def test_after_one_failure_replanning_and_planning_anew_reach_the_bound(name, seed):
    fabric = FABRICS[name](Wires())
    count = len(fabric.endpoints)
    flows = np.arange(count), derangement(seed, count)
    plan = plan_paths(fabric, *flows)
    dead = np.random.default_rng(seed).choice(between_switches(fabric, plan.links))
    degraded = fabric.without([dead, dead ^ 1])
    for again in (replan(plan, degraded), plan_paths(degraded, *flows)):
        again.verify(degraded)
        assert again.max_load == again.bound


def test_a_failure_moves_few_flows_and_its_repair_none_but_brings_the_load_back():
    fabric = leaf_spine(Endpoints.uniform(256), leaves=16, spines=16)
    plan = plan_paths(fabric, np.arange(256), (np.arange(256) + 16) % 256)
    degraded = fabric.without(np.array([0, 1]) + fabric.links_between("leaf0", "spine3")[0])
    repaired = replan(plan, degraded)
    assert repaired.max_load == repaired.bound == 2.0
    assert (repaired.links != plan.links).any(axis=1).sum() <= 8
    back = replan(repaired, fabric)
    back.verify(fabric)
    assert back.max_load == 1.0


def test_a_failure_elsewhere_changes_nothing():
    fabric = leaf_spine(Endpoints.uniform(32), leaves=4, spines=8)
    plan = plan_paths(fabric, [0, 8], [9, 1])
    dead = fabric.links_between("leaf3", "spine7")
    repaired = replan(plan, fabric.without([*dead, *(dead ^ 1)]))
    assert np.array_equal(repaired.source_port, plan.source_port)
    assert np.array_equal(repaired.links, plan.links)
