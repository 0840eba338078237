"""The stream engine against the max-plus recurrence, and against its own contract."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.network.flow.fluid import Fluid
from sim.network.flow.streams import Stage, StageEdges, run_stages
from tests.support.max_plus import Pipe, arrivals

NONE = np.empty(0, np.int32)
SECONDS = st.integers(1, 20).map(lambda tenths: tenths / 10)


def ids(values) -> np.ndarray:
    return np.array(values, np.int32)


def edges(src, dst, busy_s, alpha_s, ceiling=math.inf) -> StageEdges:
    """Edges that each have a route of their own, and pieces of one unit."""
    count = len(src)
    return StageEdges(ids(src), ids(dst), ids(range(count)), np.ones(count),
                      np.full(count, ceiling), np.array(alpha_s, float), np.zeros(count))


def own_resources(busy_s) -> Fluid:
    net = Fluid(1 / np.array(busy_s))
    net.add_routes(range(len(busy_s) + 1), range(len(busy_s)))
    return net


@st.composite
def pipes(draw):
    """A ring, or a chain, on ranks 0 to n."""
    count, ring = draw(st.integers(2, 6)), draw(st.booleans())
    times = [draw(st.lists(SECONDS, min_size=count, max_size=count)) for _ in range(2)]
    before = [[(edge - 1) % count] if ring or edge else [] for edge in range(count)]
    return Pipe(*times, before, pieces=draw(st.integers(1, 12)), lag=1 if ring else 0,
                slots=draw(st.integers(2, 5))), ring


@given(pipes())
def test_pieces_arrive_as_in_the_recurrence(drawn):
    pipe, ring = drawn
    count = len(pipe.alpha_s)
    dst = [(edge + 1) % count if ring else edge + 1 for edge in range(count)]
    ranks = count if ring else count + 1
    pairs = [(feeder, edge) for edge in range(count) for feeder in pipe.before[edge]]
    source, target = (ids(column) for column in zip(*pairs, strict=True))
    stage = Stage(edges(range(count), dst, pipe.busy_s, pipe.alpha_s), pipe.pieces, pipe.lag,
                  source, target)
    found_s, effort = run_stages(own_resources(pipe.busy_s), ranks, 1, pipe.slots, lambda _: stage)
    last_s = arrivals(pipe)[:, -1]
    wanted_s = np.zeros(ranks)
    np.maximum.at(wanted_s, np.arange(count), last_s)
    np.maximum.at(wanted_s, dst, last_s)
    assert found_s == pytest.approx(wanted_s)
    assert effort.pieces == count * pipe.pieces


def test_stages_without_feeds_are_lock_step_without_a_barrier():
    """Two pairs of ranks: the quick one is through with all stages when the slow one begins."""
    busy_s = [1.0, 10.0]
    stage = Stage(edges([0, 2], [1, 3], busy_s, [0.0, 0.0]), 1, 0, NONE, NONE)
    loaded = []
    found_s, effort = run_stages(own_resources(busy_s), 4, 5, 8,
                                 lambda number: loaded.append(number) or stage)
    assert found_s == pytest.approx([5.0, 5.0, 50.0, 50.0])
    assert loaded == list(range(5))
    assert effort.most_held == 5


def test_edges_share_what_they_have_in_common_and_keep_their_ceilings():
    net = Fluid([2.0])
    net.add_routes([0, 1, 2], [0, 0])
    stage = Stage(edges([0, 1], [2, 3], [1, 1], [0.0, 0.0]), 4, 0, NONE, NONE)
    assert run_stages(net, 4, 1, 8, lambda _: stage)[0] == pytest.approx([4.0] * 4)
    slow = stage._replace(edges=stage.edges._replace(ceiling=np.array([0.5, math.inf])))
    net = Fluid([2.0])
    net.add_routes([0, 1, 2], [0, 0])
    assert run_stages(net, 4, 1, 8, lambda _: slow)[0] == pytest.approx([8.0, 4 / 1.5] * 2)


def test_a_dead_resource_is_an_error_and_so_is_an_unknown_route():
    dead = Stage(edges([0], [1], [1], [0.0]), 1, 0, NONE, NONE)
    net = Fluid([0.0])
    net.add_routes([0, 1], [0])
    with pytest.raises(RuntimeError, match="can never complete: a resource is down"):
        run_stages(net, 2, 1, 8, lambda _: dead)
    for wrong in ({"route": ids([7])}, {"dst": ids([9])}, {"amount": np.array([-1.0])}):
        stage = dead._replace(edges=dead.edges._replace(**wrong))
        with pytest.raises(ValueError, match="an unknown rank or route, or an amount below 0"):
            run_stages(own_resources([1.0]), 2, 1, 8, lambda _, stage=stage: stage)
