"""Candidate paths of flows: networkx as oracle, and the ends of paths."""

from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.routing.paths import equal_cost_paths, grouped, left_aligned, walked_paths
from harp.routing.templates import Endpoints, leaf_spine
from tests.support.levels import draws
from tests.support.small_fabrics import paths, random_fabrics, switch_graph


def by_networkx(fabric, src, dst):
    """Nodes of all shortest paths from each switch that a NIC's live port leads to."""
    target = len(fabric.switches) + dst
    graph = switch_graph(fabric, target)
    for port in fabric.endpoint_ports[src]:
        first = int(fabric.link_dst[port])
        if port >= 0 and fabric.link_up[port] and first in graph and nx.has_path(
                graph, first, target):
            yield from nx.all_shortest_paths(graph, first, target)


@settings(max_examples=draws(30), deadline=None)
@given(random_fabrics(), st.data())
def test_equal_cost_paths_are_all_of_networkx_shortest_paths(fabric, data):
    down = data.draw(st.lists(st.integers(0, len(fabric.link_src) - 1), max_size=3))
    fabric = fabric.without(down) if down else fabric
    count = len(fabric.endpoints)
    src, dst = (end.ravel() for end in np.indices((count, count)))
    found = equal_cost_paths(fabric, src, dst, most=10_000)
    for one, other, rows in zip(src, dst, found, strict=True):
        links = [row[row >= 0].tolist() for row in rows if row[0] >= 0]
        assert len({*map(tuple, links)}) == len(links)
        passed = Counter(tuple(fabric.link_dst[path].tolist()) for path in links)
        wanted = {*map(tuple, by_networkx(fabric, one, other))} if one != other else set()
        assert {*passed} == wanted  # cables between the same two switches are paths of their own


def test_of_many_paths_some_are_drawn_without_repetition():
    fabric = leaf_spine(Endpoints.uniform(8), leaves=2, spines=32)
    (some,) = equal_cost_paths(fabric, np.array([0]), np.array([7]), most=5)
    (every,) = equal_cost_paths(fabric, np.array([0]), np.array([7]), most=32)
    assert (len(some), len(every)) == (5, 32)
    assert len({*map(tuple, some.tolist())}) == 5
    assert {*map(tuple, some.tolist())} <= {*map(tuple, every.tolist())}


def test_a_walk_is_the_route_of_the_fabric(small):
    count = len(small.endpoints)
    src, dst = (end.ravel() for end in np.indices((count, count)))
    flows = small.flows(src, dst, 50_000)
    walked = walked_paths(small, flows, None)
    assert [row[row >= 0].tolist() for row in walked] == paths(small, flows)


rows = st.integers(1, 5).flatmap(lambda width: st.lists(st.lists(
    st.integers(-1, 3), min_size=width, max_size=width), min_size=1, max_size=6))


@settings(max_examples=30)
@given(rows)
def test_links_move_to_the_front_in_their_order(path):
    for before, after in zip(path, left_aligned(np.array(path)).tolist(), strict=True):
        links = [link for link in before if link >= 0]
        assert after == links + [-1] * (len(before) - len(links))


@settings(max_examples=30)
@given(rows, st.data())
def test_rows_are_grouped_by_their_flows(path, data):
    flow = data.draw(st.lists(st.integers(0, 4), min_size=len(path), max_size=len(path)))
    stacked = grouped(5, np.array(flow), np.array(path))
    for number in range(5):
        own = [row for row, of in zip(path, flow, strict=True) if of == number]
        assert stacked[number, :len(own)].tolist() == own
        assert (stacked[number, len(own):] == -1).all()


@pytest.mark.parametrize("down", ["out", "in"])
def test_a_flow_without_a_path_has_none(down):
    fabric = leaf_spine(Endpoints.uniform(4), leaves=2, spines=2)
    (port,) = fabric.endpoint_ports[0] if down == "out" else fabric.endpoint_ports[3] ^ 1
    found = equal_cost_paths(fabric.without([port]), np.array([0, 1]), np.array([3, 2]), most=9)
    assert (found[0] == -1).all()
    assert (found[1] >= 0).all()
