"""Affinity: rings and trees cross ToRs and pods no more often than brute force can manage."""

from itertools import permutations, product

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.routing.affinity import (
    ordered_places,
    rail_rings,
    ring_order,
    tree_over_places,
    tree_parents,
)
from harp.routing.templates import Endpoints, clos3, dual_tor, leaf_spine, rail


@st.composite
def placements(draw, max_endpoints=40):
    place = st.tuples(st.integers(0, 2), st.integers(0, 3))
    return np.array(draw(st.lists(place, min_size=1, max_size=max_endpoints)))


def crossings(place, level, edges):
    return sum(tuple(place[a][: level + 1]) != tuple(place[b][: level + 1]) for a, b in edges)


def ring_edges(order):
    return list(zip(order, np.roll(order, -1), strict=True))


@settings(deadline=None, max_examples=25)
@given(placements(max_endpoints=6))
def test_no_ring_crosses_fewer_tors_or_pods(place):
    order = ordered_places(place)
    rings = [(0, *rest) for rest in permutations(range(1, len(place)))]
    for level in range(2):
        best = min(crossings(place, level, ring_edges(ring)) for ring in rings)
        assert crossings(place, level, ring_edges(order)) == best


@settings(deadline=None)
@given(placements())
def test_a_ring_is_a_permutation_that_keeps_the_first_rank_first(place):
    order = ordered_places(place)
    assert order[0] == 0
    assert np.array_equal(np.sort(order), np.arange(len(place)))


@settings(deadline=None, max_examples=15)
@given(placements(max_endpoints=5))
def test_no_tree_crosses_fewer_tors_or_pods(place):
    count = len(place)
    parents = tree_over_places(place)
    edges = [(n, p) for n, p in enumerate(parents.tolist()) if p >= 0]
    trees = [list(nx.from_prufer_sequence(list(code)).edges)
             for code in product(range(count), repeat=count - 2)] if count > 2 else [edges]
    for level in range(2):
        assert crossings(place, level, edges) == min(crossings(place, level, t) for t in trees)


@settings(deadline=None)
@given(placements())
def test_a_tree_is_binary_and_every_place_is_one_subtree(place):
    parents = tree_over_places(place)
    tree = nx.Graph([(n, p) for n, p in enumerate(parents.tolist()) if p >= 0])
    tree.add_node(0)
    assert parents[0] == -1
    assert nx.is_tree(tree)
    assert len(tree) == len(place)
    assert np.bincount(parents[1:], minlength=1).max(initial=0) <= 2
    for level in range(2):
        for label in np.unique(place[:, : level + 1], axis=0):
            members = np.flatnonzero((place[:, : level + 1] == label).all(axis=1))
            assert nx.is_connected(tree.subgraph(members.tolist()))


def test_a_tree_within_one_tor_is_as_shallow_as_a_binary_tree_can_be():
    parents = tree_over_places(np.zeros((127, 1), np.int64))
    depth = np.zeros(127, np.int64)
    for node in range(1, 127):
        depth[node] = depth[parents[node]] + 1
    assert depth.max() == 6


def test_a_ring_or_tree_on_a_scattered_job_enters_each_leaf_and_pod_once():
    fabric = clos3(Endpoints.uniform(32), pods=4, leaves=2, aggs=2, cores=4)
    ranks = np.random.default_rng(3).permutation(32)[:20]
    leaves, pods = ranks // 4, ranks // 8
    ring = ring_edges(ring_order(fabric, ranks))
    tree = [(n, p) for n, p in enumerate(tree_parents(fabric, ranks).tolist()) if p >= 0]
    for place in (leaves, pods):
        assert sum(place[a] != place[b] for a, b in ring) == len(set(place))
        assert sum(place[a] != place[b] for a, b in tree) == len(set(place)) - 1


def test_both_tors_of_a_pair_are_one_place():
    fabric = dual_tor(Endpoints.uniform(8, ports=2), pairs=2, spines=2)
    edges = ring_edges(ring_order(fabric, [0, 4, 1, 5, 2, 6]))
    assert sum((a % 2) != (b % 2) for a, b in edges) == 2


def test_every_nic_has_a_ring_of_its_own_that_stays_on_its_rail():
    fabric = rail(Endpoints.uniform(8, nics=4), hosts_per_leaf=4, spines=2)
    hosts = [0, 5, 1, 6, 2]
    endpoints = np.array([4 * h + n for h in hosts for n in range(4)])
    rings = rail_rings(fabric, endpoints)
    assert len(rings) == 4
    visited = [fabric.endpoint_host[endpoints[ring]].tolist() for ring in rings]
    assert visited == [[0, 1, 2, 5, 6]] * 4
    for nic, ring in enumerate(rings):
        assert set(fabric.endpoint_nic[endpoints[ring]]) == {nic}


def test_a_single_tier_fabric_has_nothing_to_order():
    fabric = leaf_spine(Endpoints.uniform(4), leaves=1, spines=1)
    assert ring_order(fabric, [2, 0, 3]).tolist() == [0, 1, 2]


def test_places_without_levels_are_refused():
    with pytest.raises(ValueError, match="places have shape"):
        ordered_places(np.arange(3))
