"""Double binary trees: their shape by networkx, and their cost in closed form."""

from __future__ import annotations

from math import ceil, floor, log2

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.collectives.registry import make_plan
from harp.collectives.tree import host_trees, two_trees
from tests.support.levels import draws
from tests.support.plan_times import ALPHA_S, RATE, SIZES, close, plan_s, port_s


@given(st.integers(4, 600), st.sampled_from((8, *SIZES[1:3], 1 << 26)))
@settings(max_examples=draws(60), deadline=None)
def test_tree_formula_bounds_the_bytes_of_its_steps(n, size):
    plan = make_plan("tree", ranks=n, nbytes=size)
    depth, chunks = floor(log2(n - 1)) + 1, max(1, ceil(size / 2 / (512 << 10)))
    chunk_s = size / 2 / chunks / RATE
    formula = 2 * depth * (ALPHA_S + 2 * chunk_s) + (chunks - 1) * 4 * chunk_s
    assert plan.steps == 2 * depth + chunks - 1
    assert close(plan_s(plan), formula, 8 * plan.steps)
    rows = [plan.step(s) for s in range(plan.steps)]
    busy_s = sum(port_s(r.src, r.dst, r.length) for r in rows) + 2 * depth * ALPHA_S
    assert busy_s <= formula * (1 + 1e-9)
    assert formula <= busy_s + (2 * depth + 4) * chunk_s


@pytest.mark.parametrize(("n", "buffers"),
                         [(2, 1.0), (3, 1.5), (4, 2.0), (5, 2.0), (8, 2.0), (99, 2.0), (1000, 2.0)])
def test_long_trees_move_twice_the_buffer(n, buffers):
    plan = make_plan("tree", ranks=n, nbytes=4 << 30)
    (phase,) = plan.phases()
    moved = port_s(phase.src, phase.dst, phase.bytes_per_edge) * RATE / (4 << 30)
    assert moved == pytest.approx(buffers, rel=1e-12)


@given(st.integers(5, 600), st.sampled_from(SIZES))
@settings(max_examples=40, deadline=None)
def test_broadcast(n, size):
    plan = make_plan("broadcast", ranks=n, nbytes=size)
    depth, chunks = floor(log2(n - 2)) + 1, max(1, ceil(size / 2 / (512 << 10)))
    assert plan.steps == depth + chunks
    wanted = (depth + 1) * ALPHA_S + (depth + chunks) * size / chunks / RATE
    assert close(plan_s(plan), wanted, 8 * plan.steps)


@given(st.integers(1, 300))
@settings(deadline=None)
def test_two_trees_span_all_ranks_and_share_no_inner_node(ranks):
    order = np.random.default_rng(ranks).permutation(ranks).astype(np.int32)
    trees, roots, depth = two_trees(order)
    inner = []
    for (child, parent, _), root in zip(trees, roots, strict=True):
        tree = nx.DiGraph(zip(parent.tolist(), child.tolist(), strict=True))
        tree.add_node(root)
        assert nx.is_arborescence(tree)
        assert set(tree) == set(range(ranks))
        assert max(d for _, d in tree.out_degree) <= 2
        levels = nx.single_source_shortest_path_length(tree, root)
        assert max(levels.values()) == depth == (0 if ranks == 1 else int(np.log2(ranks - 1)) + 1)
        inner.append({n for n, d in tree.out_degree if d})
    # Only with an odd number of ranks can one rank have children in both.
    assert len(inner[0] & inner[1]) <= ranks % 2


@given(st.integers(1, 40), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_trees_of_hosts_are_binary_between_them_and_chains_inside(machines, local):
    hosts = np.random.default_rng(machines).permutation(machines * local).reshape(-1, local)
    host = np.argsort(hosts.ravel()) // local
    inner_hosts = []
    for tree, over in zip(host_trees(hosts), two_trees(np.arange(machines))[0], strict=True):
        child = np.flatnonzero(tree.parent >= 0)
        graph = nx.DiGraph(zip(tree.parent[child].tolist(), child.tolist(), strict=True))
        graph.add_nodes_from(range(machines * local))
        assert nx.is_arborescence(graph)
        assert max(degree for _, degree in graph.out_degree) <= 2
        crossing = host[child] != host[tree.parent[child]]
        between = zip(host[child[crossing]].tolist(), host[tree.parent[child[crossing]]].tolist(),
                      strict=True)
        assert sorted(between) == sorted(zip(over[0].tolist(), over[1].tolist(), strict=True))
        for row in hosts:
            inside = graph.subgraph(row.tolist())
            assert inside.number_of_edges() == local - 1
            assert max(dict(inside.degree).values()) <= 2
        inner_hosts.append(set(host[tree.parent[child[crossing]]].tolist()))
    # A host with children in one tree is a leaf in the other, but for one where they are odd.
    assert len(inner_hosts[0] & inner_hosts[1]) <= machines % 2


def test_a_host_has_a_chain_with_its_first_child_below_the_second_rank():
    """Host 1 is below host 2 as its first child, and host 2 below host 0 as its second."""
    first, second = host_trees(np.arange(9).reshape(3, 3))
    assert first.parent.tolist() == [-1, 0, 1, 7, 3, 4, 0, 6, 7]
    assert second.parent.tolist() == [3, 0, 1, -1, 3, 4, 1, 6, 7]
