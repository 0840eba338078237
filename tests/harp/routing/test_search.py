"""Local search over given paths: every choice by brute force as oracle."""

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.routing.search import Spread


@st.composite
def spreads(draw):
    """Up to 5 flows of some bits/s over up to 4 links, each with up to 3 paths of its own."""
    links = draw(st.integers(1, 4))
    path = st.lists(st.integers(0, links - 1), min_size=1, max_size=2, unique=True)
    flows = draw(st.lists(st.lists(path, min_size=1, max_size=3), min_size=1, max_size=5))
    paths = np.full((len(flows), max(map(len, flows)), 2), -1, np.int64)
    for flow, some in enumerate(flows):
        for number, one in enumerate(some):
            paths[flow, number, :len(one)] = one
    return (paths, np.array(draw(st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=len(flows),
                                          max_size=len(flows)))),
            np.array(draw(st.lists(st.sampled_from([1.0, 4.0]), min_size=links, max_size=links))))


def loads(paths, demand, bps, choice):
    load = np.zeros(bps.size)
    for rows, rate, chosen in zip(paths, demand, choice, strict=True):
        load[rows[chosen][rows[chosen] >= 0]] += rate
    return load / bps


@settings(deadline=None, max_examples=20)
@given(spreads())
def test_the_load_is_that_of_the_choice_and_search_makes_none_worse(case):
    paths, demand, bps = case
    state = Spread(paths, demand, bps, np.zeros(bps.size), np.full(len(paths), -1))
    state.place(np.arange(len(paths)))
    for before in (np.inf, state.max_load):
        assert (paths[np.arange(len(paths)), state.choice, 0] >= 0).all()
        assert np.allclose(state.load[:-1], loads(paths, demand, bps, state.choice))
        assert state.max_load <= before + 1e-9
        state.improve(10, 0.0)
    least = min(loads(paths, demand, bps, choice).max() for choice in product(
        *(np.flatnonzero(rows[:, 0] >= 0) for rows in paths)))
    assert state.max_load >= least - 1e-9


def test_search_finds_the_chain_of_moves_that_no_single_move_begins():
    """Three flows in a circle of pairs of links: all have to turn for each to be alone."""
    paths = np.array([[[0], [1]], [[1], [2]], [[2], [0]], [[0], [3]]])
    state = Spread(paths, np.ones(4), np.ones(4), np.ones(4), np.array([0, 0, 0, 0]))
    assert state.max_load == 2.0
    state.improve(100, 1.0)
    assert state.max_load == 1.0
    assert sorted(paths[np.arange(4), state.choice, 0].tolist()) == [0, 1, 2, 3]


def test_flows_that_may_not_move_stay():
    paths = np.array([[[0], [1]], [[0], [1]]])
    state = Spread(paths, np.ones(2), np.ones(2), np.ones(2), np.array([0, 0]))
    state.improve(50, 1.0, movable=np.array([False, False]))
    assert state.choice.tolist() == [0, 0]
    state.improve(50, 1.0, movable=np.array([False, True]))
    assert state.choice.tolist() == [0, 1]
