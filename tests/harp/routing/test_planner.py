"""Global hash routing: promised links are walked links, no collisions, never worse than ECMP."""


import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.routing import bond, hashes
from harp.routing.fabric import UnreachableError
from harp.routing.path_plan import PlanError, link_loads
from harp.routing.planner import plan_paths, replan
from harp.routing.templates import (
    Cable,
    Endpoints,
    SwitchHash,
    Wires,
    dual_tor,
    explicit,
    fat_tree,
    leaf_spine,
)
from tests.support.levels import draws
from tests.support.planned_fabrics import FABRICS, derangement, seeds


def ecmp_load(fabric, plan):
    """Load of the fullest link with each endpoint's flows on ports from 49152 on."""
    ptr, links = fabric.route(fabric.flows(plan.src, plan.dst))
    demand = np.repeat(plan.demand_bps, np.diff(ptr))
    return (np.bincount(links, demand, len(fabric.link_bps)) / fabric.link_bps).max()


wires = st.builds(
    lambda function, seed: Wires(switch_hash=SwitchHash(function, seed=seed)),
    st.sampled_from(hashes.NAMES), st.integers(0, 9))


@settings(deadline=None, max_examples=draws(40))
@given(st.sampled_from(sorted(FABRICS)), wires, seeds)
def test_a_permutation_on_a_full_clos_never_collides(name, wire, seed):
    fabric = FABRICS[name](wire)
    count = len(fabric.endpoints)
    plan = plan_paths(fabric, np.arange(count), derangement(seed, count))
    plan.verify(fabric)
    assert plan.bound == 1.0
    assert plan.max_load == 1.0
    assert plan.unrealised == 0


@settings(deadline=None, max_examples=15)
@given(st.sampled_from(["leaf-spine", "fat-tree", "odd"]), st.integers(2, 4), seeds)
def test_concurrent_rings_never_collide(name, jobs, seed):
    fabric = FABRICS[name](Wires())
    rings = np.array_split(np.random.default_rng(seed).permutation(len(fabric.endpoints)), jobs)
    plan = plan_paths(fabric, np.concatenate(rings),
                      np.concatenate([np.roll(ring, -1) for ring in rings]))
    plan.verify(fabric)
    assert plan.max_load == 1.0


@settings(deadline=None, max_examples=15)
@given(seeds, st.integers(1, 3))
def test_both_ports_of_every_bond_are_used_without_collision(seed, jobs):
    fabric = dual_tor(Endpoints.uniform(16, ports=2), pairs=4, spines=4)
    src = np.tile(np.arange(16), 2)
    plan = plan_paths(fabric, src, np.tile(derangement(seed, 16), 2))
    plan.verify(fabric)
    assert plan.max_load == 1.0
    assert np.array_equal(np.bincount(2 * plan.src + plan.bond_port), np.ones(32))
    five_tuples = set(zip(plan.src, plan.dst, plan.source_port, strict=True))
    assert len(five_tuples) == 32


def test_an_oversubscribed_fabric_shares_its_uplinks_evenly():
    fabric = leaf_spine(Endpoints.uniform(64), leaves=4, spines=8)
    plan = plan_paths(fabric, np.arange(64), (np.arange(64) + 16) % 64)
    plan.verify(fabric)
    assert plan.bound == plan.max_load == 2.0


@settings(deadline=None, max_examples=draws(25))
@given(st.sampled_from(sorted(FABRICS)), seeds)
def test_a_plan_is_never_worse_than_ecmp_whatever_the_flows(name, seed):
    rng = np.random.default_rng(seed)
    fabric = FABRICS[name](Wires())
    flows = rng.integers(1, 80)
    src = rng.integers(len(fabric.endpoints), size=flows)
    dst = (src + rng.integers(1, len(fabric.endpoints), flows)) % len(fabric.endpoints)
    plan = plan_paths(fabric, src, dst, rng.uniform(1e9, 100e9, flows))
    plan.verify(fabric)
    assert plan.bound <= plan.max_load * (1 + 1e-9)
    assert plan.max_load <= plan.ecmp_load
    loads = link_loads(fabric, plan.links, plan.demand_bps)
    assert loads.max() == pytest.approx(plan.max_load)


@settings(deadline=None, max_examples=draws(20))
@given(st.sampled_from(["leaf-spine", "fat-tree", "parallel"]), st.integers(1, 16), seeds)
def test_few_usable_ports_still_beat_or_equal_ecmp(name, ports, seed):
    fabric = FABRICS[name](Wires())
    count = len(fabric.endpoints)
    rng = np.random.default_rng(seed)
    usable = [rng.choice(np.arange(49152, 65536), ports, replace=False) for _ in range(count)]
    plan = plan_paths(fabric, np.arange(count), derangement(seed, count), ports=usable)
    plan.verify(fabric)
    assert all(port in usable[src] for src, port in zip(plan.src, plan.source_port, strict=True))
    assert plan.max_load <= plan.ecmp_load
    if ports == 1:
        assert plan.max_load == plan.ecmp_load


def test_polarised_switches_are_reported_and_not_worse_than_ecmp():
    same = Wires(switch_hash=SwitchHash("crc32", per_switch=False))
    fabric = fat_tree(Endpoints.uniform(54), k=6, wires=same)
    plan = plan_paths(fabric, np.arange(54), derangement(1, 54))
    plan.verify(fabric)
    assert plan.unrealised > 0
    assert plan.max_load <= ecmp_load(fabric, plan)


def test_links_of_different_rates_are_loaded_by_their_rates():
    endpoints = Endpoints.uniform(10, bps=10e9)
    cables = [Cable(f"tor{t}", f"spine{s}", 40e9 if s else 10e9, 1e-6)
              for t in range(2) for s in range(2)]
    fabric = explicit(
        endpoints, devices=["tor0", "tor1", "spine0", "spine1"], cables=cables,
        host_links=[(name, 0, f"tor{i // 5}") for i, name in enumerate(endpoints.names)])
    plan = plan_paths(fabric, np.arange(5), np.arange(5, 10))
    plan.verify(fabric)
    assert plan.bound == plan.max_load == 1.0


def test_bad_flows_get_one_sentence():
    fabric = leaf_spine(Endpoints.uniform(4), leaves=2, spines=2)
    for arguments, message in (
        (([0], [0]), "flow 0 goes from host-0/eth0 to itself"),
        (([0, 1], [2]), "2 sources do not pair with 1"),
        (([0], [4]), "numbers 0 to 3"),
        (([0], [1], 0.0), "a rate above zero"),
    ):
        with pytest.raises(ValueError, match=message):
            plan_paths(fabric, *arguments)
    for ports, message in (([0], "1 to 65535"), ([], "1 to 65535"), ([[50000]], "1 lists")):
        with pytest.raises(ValueError, match=message):
            plan_paths(fabric, [0], [3], ports=ports)


def test_no_path_left_is_an_error_that_names_both_ends():
    fabric = leaf_spine(Endpoints.uniform(4), leaves=2, spines=2)
    plan = plan_paths(fabric, [0], [3])
    cut = fabric.without(np.concatenate([fabric.links_between("leaf0", f"spine{s}")
                                         for s in range(2)]))
    for attempt in (lambda: replan(plan, cut), lambda: plan_paths(cut, [0], [3])):
        with pytest.raises(UnreachableError, match="from host-0/eth0 to host-3/eth0"):
            attempt()


def test_no_flows_make_an_empty_plan():
    fabric = leaf_spine(Endpoints.uniform(4), leaves=2, spines=2)
    plan = plan_paths(fabric, [], [])
    plan.verify(fabric)
    assert replan(plan, fabric).max_load == 0.0


@pytest.mark.parametrize("policy", ["lacp-3+4", "lacp-2+3", "none"])
def test_ports_are_such_that_bonds_hash_them_to_the_planned_port(policy):
    fabric = dual_tor(Endpoints.uniform(16, ports=2), pairs=4, spines=4)
    src, dst = np.arange(16), (np.arange(16) + 4) % 16
    bonds = [policy] * 16
    plan = plan_paths(fabric, src, dst, bonds=bonds)
    assert (bond.choose(fabric, plan.flows(fabric), policy) == plan.bond_port).all()
    plan.verify(fabric, bonds)
    assert plan.max_load <= plan.ecmp_load
    if policy == "lacp-3+4":
        assert plan.unrealised == 0
        assert plan.max_load == plan_paths(fabric, src, dst).max_load
        with pytest.raises(PlanError, match="where the plan has"):
            plan_paths(fabric, src, dst).verify(fabric, bonds)
    again = replan(plan, fabric, bonds=bonds)
    again.verify(fabric, bonds)
