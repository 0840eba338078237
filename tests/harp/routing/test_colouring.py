"""Edge colouring: the laws of König and de Werra on random bipartite multigraphs."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.routing.colouring import balanced_colouring, euler_split, konig_colouring


@st.composite
def multigraphs(draw, max_vertices=9, max_edges=60):
    vertices = draw(st.integers(1, max_vertices))
    edge = st.tuples(st.integers(0, vertices - 1), st.integers(0, vertices - 1))
    edges = draw(st.lists(edge, max_size=max_edges))
    pairs = np.array(edges, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def degree(*sides):
    return max((int(np.bincount(side).max(initial=0)) for side in sides), default=0)


def counts(vertex, colour, colours):
    table = np.zeros((int(vertex.max(initial=-1)) + 1, colours), np.int64)
    np.add.at(table, (vertex, colour), 1)
    return table


@settings(deadline=None)
@given(multigraphs())
def test_as_many_colours_as_the_largest_degree_suffice(graph):
    left, right = graph
    colours = max(1, degree(left, right))
    for colour in (balanced_colouring(left, right, colours), konig_colouring(left, right, colours)):
        assert colour.shape == left.shape
        for side in graph:
            assert counts(side, colour, colours).max(initial=0) <= 1


@settings(deadline=None)
@given(multigraphs(), st.integers(1, 13))
def test_any_number_of_colours_is_shared_evenly_at_every_vertex(graph, colours):
    colour = balanced_colouring(*graph, colours)
    assert np.all((colour >= 0) & (colour < colours))
    for side in graph:
        table = counts(side, colour, colours)
        assert np.all(table.max(axis=1, initial=0) - table.min(axis=1, initial=99) <= 1)


@settings(deadline=None)
@given(multigraphs(max_vertices=12), st.integers(1, 4), st.sampled_from([2, 4, 8]))
def test_groups_of_vertices_are_shared_evenly_too(graph, size, colours):
    groups = [side // size for side in graph]
    colour = balanced_colouring(*graph, colours, left_group=groups[0], right_group=groups[1])
    for side in [*graph, *groups]:
        table = counts(side, colour, colours)
        assert np.all(table.max(axis=1, initial=0) - table.min(axis=1, initial=99) <= 1)


@settings(deadline=None)
@given(multigraphs())
def test_euler_split_halves_every_degree(graph):
    half = euler_split([graph[0]], [graph[1]])
    for side in graph:
        table = counts(side, half, 2)
        assert np.all(np.abs(table[:, 0] - table[:, 1]) <= 1)


@settings(deadline=None, max_examples=30)
@given(multigraphs(max_vertices=5, max_edges=16))
def test_the_colouring_is_a_vertex_colouring_of_networkx_line_graph(graph):
    left, right = graph
    multigraph = nx.MultiGraph()
    multigraph.add_edges_from(
        (("l", u), ("r", v), e)
        for e, (u, v) in enumerate(zip(left.tolist(), right.tolist(), strict=True)))
    colour = balanced_colouring(left, right, max(1, degree(left, right)))
    for one, other, *_ in nx.line_graph(multigraph).edges:
        assert colour[one[2]] != colour[other[2]]


def test_too_few_colours_for_a_proper_colouring_are_refused():
    with pytest.raises(ValueError, match="3 edges, more than the 2 colours"):
        konig_colouring(np.zeros(3, np.int64), np.arange(3), 2)
    with pytest.raises(ValueError, match="at least 1 colour"):
        balanced_colouring(np.zeros(1, np.int64), np.zeros(1, np.int64), 0)
