"""Affinity: rings cross ToRs and pods no more often than brute force can manage."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.routing.affinity import ordered_places, ring_order
from harp.routing.templates import Endpoints, clos3, dual_tor, leaf_spine


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


def test_a_ring_on_a_scattered_job_enters_each_leaf_and_pod_once():
    fabric = clos3(Endpoints.uniform(32), pods=4, leaves=2, aggs=2, cores=4)
    ranks = np.random.default_rng(3).permutation(32)[:20]
    leaves, pods = ranks // 4, ranks // 8
    ring = ring_edges(ring_order(fabric, ranks))
    for place in (leaves, pods):
        assert sum(place[a] != place[b] for a, b in ring) == len(set(place))


def test_both_tors_of_a_pair_are_one_place():
    fabric = dual_tor(Endpoints.uniform(8, ports=2), pairs=2, spines=2)
    edges = ring_edges(ring_order(fabric, [0, 4, 1, 5, 2, 6]))
    assert sum((a % 2) != (b % 2) for a, b in edges) == 2


def test_a_single_tier_fabric_has_nothing_to_order():
    fabric = leaf_spine(Endpoints.uniform(4), leaves=1, spines=1)
    assert ring_order(fabric, [2, 0, 3]).tolist() == [0, 1, 2]


def test_places_without_levels_are_refused():
    with pytest.raises(ValueError, match="places have shape"):
        ordered_places(np.arange(3))
