"""The three views of a plan agree: all of a step, all of a rank, phases."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.collectives.ir import Op, Transfers
from harp.collectives.registry import make_plan, plan_names
from harp.collectives.tree import host_trees, two_trees
from tests.support.collectives_cases import divisors, plans
from tests.support.levels import draws, long_except

if TYPE_CHECKING:
    from harp.collectives.collective_plan import Plan


def all_messages(plan: Plan) -> Counter:
    return Counter(m for s in range(plan.steps) for m in plan.step(s).messages())


@given(plans(max_ranks=24, max_elements=100))
@settings(max_examples=draws(150), deadline=None)
def test_rank_programs_are_exactly_the_union_of_the_steps(plan):
    sent, received = Counter(), Counter()
    for rank in range(plan.ranks):
        steps = list(plan.rank_steps(rank))
        assert [s.step for s in steps] == sorted({s.step for s in steps})
        for step in steps:
            assert step.local or step.sends or step.receives
            assert all(w.rank == rank and w.step == step.step for w in step.local)
            assert all(m.src == rank and m.step == step.step for m in step.sends)
            assert all(m.dst == rank and m.step == step.step for m in step.receives)
            sent.update(step.sends)
            received.update(step.receives)
    assert sent == received == all_messages(plan)


@given(plans(max_ranks=40))
@settings(max_examples=draws(150), deadline=None)
def test_phases_carry_exactly_the_bytes_of_the_steps_on_every_edge(plan):
    by_steps, by_phases = Counter(), Counter()
    for message in all_messages(plan).elements():
        by_steps[message.src, message.dst] += message.length
    for phase in plan.phases():
        assert len(phase.src) == len(phase.dst) == len(phase.bytes_per_edge) == len(phase.group)
        for src, dst, size in zip(phase.src.tolist(), phase.dst.tolist(),
                                  phase.bytes_per_edge.tolist(), strict=True):
            by_phases[src, dst] += size
    assert +by_phases == by_steps


@given(plans(max_ranks=40, min_ranks=2, min_elements=1))
@settings(max_examples=100, deadline=None)
def test_phases_count_every_step(plan):
    steps = 0
    for phase in plan.phases():
        if phase.local:
            assert len(phase.local.elements) == plan.ranks
            assert phase.local.op in (Op.SELECT, Op.SCATTER_ADD, Op.ENCODE, Op.DECODE)
        steps += 1 if phase.local else phase.steps
        steps += 0 if phase.feeds is None else int(phase.feeds.level.max())
    assert steps == plan.steps


@given(plans(max_ranks=16, max_elements=40))
@settings(max_examples=100, deadline=None)
def test_rows_are_plain_and_within_bounds(plan):
    for step in range(plan.steps):
        rows = plan.step(step)
        assert (rows.step == step).all()
        assert (rows.length > 0).all()
        assert (rows.src != rows.dst).all()
        assert rows.src.dtype == rows.dst.dtype == np.int32
        assert rows.length.dtype == rows.src_offset.dtype == np.int64
        assert set(rows.op.tolist()) <= {Op.COPY, Op.REDUCE}


@pytest.mark.parametrize("name", plan_names())
def test_one_rank_and_no_bytes_need_no_steps(name):
    for ranks, nbytes in ((1, 4096), (6, 0), (1, 0)):
        plan = make_plan(name, ranks=ranks, nbytes=nbytes, group=1)
        assert plan.steps == 0
        assert list(plan.phases()) == []
        assert list(plan.rank_steps(0)) == []
    with pytest.raises(IndexError, match="step 0 of a plan of 0 steps"):
        plan.step(0)
    with pytest.raises(IndexError, match="rank 1 of a plan of 1 ranks"):
        next(plan.rank_steps(1))


def test_ring_is_one_phase_and_2d_has_three():
    (ring,) = make_plan("ring", ranks=8, nbytes=800).phases()
    assert (ring.steps, ring.is_ring, len(ring.src)) == (14, True, 8)
    assert ring.dst.tolist() == [1, 2, 3, 4, 5, 6, 7, 0]
    assert ring.bytes_per_edge.tolist() == [2 * 700] * 8
    intra, inter, _ = make_plan("2d", ranks=12, nbytes=1200, group=4).phases()
    assert (intra.steps, len(intra.src), len(set(intra.group.tolist()))) == (3, 12, 3)
    assert (inter.steps, len(inter.src), len(set(inter.group.tolist()))) == (4, 12, 4)
    assert set(zip(inter.src.tolist(), inter.dst.tolist(), strict=True)) == {
        (h * 4 + i, (h + 1) % 3 * 4 + i) for h in range(3) for i in range(4)}


def test_order_places_the_pattern():
    order = [3, 1, 0, 2]
    (phase,) = make_plan("ring", ranks=4, nbytes=64, order=order).phases()
    assert phase.src.tolist() == order
    assert phase.dst.tolist() == [1, 0, 2, 3]
    intra = next(make_plan("2d", ranks=4, nbytes=64, group=2, order=order).phases())
    assert set(zip(intra.src.tolist(), intra.dst.tolist(), strict=True)) == {
        (3, 1), (1, 3), (0, 2), (2, 0)}


def test_direct_alltoall_is_one_step_of_independent_messages():
    plan = make_plan("alltoall", ranks=5, nbytes=100)
    assert plan.steps == 1
    (step,) = plan.rank_steps(2)
    assert len(step.sends) == len(step.receives) == 4
    assert sum(w.src_length for w in step.local) == 20
    (phase,) = plan.phases()
    assert not phase.pipelined
    assert (len(phase.src), phase.steps) == (20, 1)


def test_halving_starts_with_neighbours():
    first = make_plan("halving-doubling", ranks=8, nbytes=800).step(0)
    assert (first.src ^ first.dst == 1).all()
    assert (first.length == 400).all()


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


def array_bytes(part: object) -> int:
    """Bytes of all arrays within a plan."""
    if isinstance(part, np.ndarray):
        return part.nbytes
    if is_dataclass(part):
        part = tuple(getattr(part, f.name) for f in fields(part))
    return sum(map(array_bytes, part)) if isinstance(part, tuple) else 0


@pytest.mark.parametrize("name", long_except(
    plan_names(), *(name for name in plan_names() if name != "2d-few-bits")))  # it takes seconds
def test_sixteen_thousand_ranks_stay_compact(name):
    ranks = 16384
    plan = make_plan(name, ranks=ranks, nbytes=1 << 30, group=8, order=range(ranks))
    assert array_bytes(plan.stages) < 300 * ranks
    first = next(plan.rank_steps(ranks - 1))
    assert first.local or first.sends or first.receives
    if "alltoall" not in name and name != "few-bits":  # all ranks send to all others
        assert sum(p.bytes_per_edge.sum() for p in plan.phases()) > 0


def test_ring_of_sixteen_thousand_has_one_message_a_rank_and_step():
    plan = make_plan("ring", ranks=16384, nbytes=1 << 30)
    program = list(plan.rank_steps(5))
    assert len(program) == plan.steps == 2 * 16383
    assert {(len(s.sends), len(s.receives)) for s in program} == {(1, 1)}
    assert len(plan.step(20000)) == 16384
    (phase,) = plan.phases()
    assert phase.bytes_per_edge.tolist() == [2 * ((1 << 30) - (1 << 16))] * 16384


def test_transfers_of_nothing():
    assert len(Transfers.concat([])) == 0
    assert list(Transfers.empty().messages()) == []


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"name": "rign"}, "there is no plan 'rign'; did you mean 'ring'"),
    ({"name": "2D"}, "there is no plan '2D'.*allowed: ring, tree, recursive-doubling, "),
    ({"grup": 2}, "plans have no parameter 'grup'; did you mean 'group'"),
    ({"ranks": 0}, "ranks is 0, but must be at least 1"),
    ({"nbytes": -4}, "nbytes is -4, but must be at least 0"),
    ({"nbytes": 6}, "nbytes 6 is not a whole number of elements of 4 bytes"),
    ({"unit_bytes": 0}, "unit_bytes is 0, but must be at least 1"),
    ({"chunk_bytes": 0}, "chunk_bytes is 0, but must be at least 1"),
    ({"root": 12}, "root 12 is not one of the ranks 0 to 11"),
    ({"ratio": 0.0}, "ratio is 0.0, but must be above 0 and at most 1"),
    ({"value_bytes": 0}, "value_bytes is 0, but must be at least 1"),
    ({"order": [0] * 12}, "order must name each of the ranks 0 to 11 once"),
    ({"order": [0, 1]}, "order must name each of the ranks 0 to 11 once"),
    ({"name": "2d"}, "plan '2d' needs group, the number of ranks of a host"),
    ({"name": "2d", "group": 5},
     "group size 5 does not divide the 12 ranks; the nearest that does is 4"),
    ({"name": "2d-topk", "group": 0}, "group size 0 does not divide the 12 ranks"),
    ({"name": "hierarchical-alltoall", "group": 24}, "group size 24 does not divide the 12 ranks"),
])
def test_wrong_parameters_are_one_sentence(changes, sentence):
    parameters = {"name": "ring", "ranks": 12, "nbytes": 96} | changes
    with pytest.raises(ValueError, match=sentence) as error:
        make_plan(**parameters)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("missing", ["ranks", "nbytes"])
def test_required_parameters(missing):
    parameters = {"ranks": 2, "nbytes": 8}
    del parameters[missing]
    with pytest.raises(ValueError, match=f"plan 'ring' needs {missing}"):
        make_plan("ring", **parameters)


@pytest.mark.parametrize("ranks", [1, 12, 17])
def test_every_divisor_is_a_group_size(ranks):
    for group in range(1, ranks + 1):
        if group in divisors(ranks):
            assert make_plan("2d", ranks=ranks, nbytes=400, group=group).ranks == ranks
        else:
            with pytest.raises(ValueError, match="does not divide"):
                make_plan("2d", ranks=ranks, nbytes=400, group=group)
