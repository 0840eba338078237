"""Cuts against all cuts there are, on small random graphs, with sets instead of prefix sums."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
import torch.distributed.pipelining.schedules as torch_schedules
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.angelptm.page_plan import CapacityError
from harp.angelptm.stages.cuts import CutError, Link, Memory, cut, in_flight
from harp.angelptm.stages.operator_graph import Graph, Operator
from tests.support.levels import draws

BLOCKS = 4


@st.composite
def graphs(draw):
    """Graphs of up to nine operators; some of their values skip far."""
    inputs = draw(st.integers(1, 2))
    count = draw(st.integers(inputs + 1, 9))
    few = st.integers(0, 9)
    operators = []
    for number in range(count):
        reads = () if number < inputs else tuple(draw(st.sets(
            st.integers(0, number - 1), min_size=1, max_size=3)))
        operators.append(Operator(
            f"o{number}", reads, draw(few), draw(st.booleans()), draw(few), draw(few),
            tuple(draw(st.sets(st.integers(0, BLOCKS - 1), max_size=2))),
            tuple(draw(st.sets(st.integers(0, BLOCKS - 1), max_size=2)))))
    sizes = st.lists(few, min_size=BLOCKS, max_size=BLOCKS).map(tuple)
    return Graph(tuple(operators), inputs, tuple(draw(st.sets(
        st.integers(0, count - 1), min_size=1, max_size=2))), draw(sizes), draw(sizes),
        frozenset(draw(st.sets(st.integers(0, count), max_size=2))))


def crossing_of(graph, gap):
    """Values made before a gap that something behind it reads, or the model gives."""
    if gap in {0, len(graph.operators)}:
        return set()
    needed = {value for operator in graph.operators[gap:] for value in operator.reads}
    return {value for value in needed | set(graph.outputs) if value < gap}


def time_of(graph, begin, end, before, behind):
    inside = graph.operators[begin:end]
    time = sum(operator.forward_s + operator.backward_s for operator in inside)
    values = sum(graph.operators[one].value_bytes for one in crossing_of(graph, begin))
    back = sum(graph.operators[one].value_bytes for one in crossing_of(graph, end)
               if graph.operators[one].differentiable)
    return (time + (values / before.bytes_per_s + before.latency_s if values else 0)
            + (back / behind.bytes_per_s + behind.latency_s if back else 0))


def bytes_of(graph, begin, end, memory, under_way):
    inside = graph.operators[begin:end]
    states = {block for operator in inside for block in operator.parameters}
    saved = {block for operator in inside for block in operator.saved}
    into, out = (sum(graph.operators[one].value_bytes for one in crossing_of(graph, gap))
                 for gap in (begin, end))
    back = sum(graph.operators[one].value_bytes for one in crossing_of(graph, end)
               if graph.operators[one].differentiable)
    return (memory.states * sum(graph.parameter_bytes[block] for block in states)
            + memory.microbatches * (into + back)
            + under_way * (sum(graph.saved_bytes[block] for block in saved) + out))


def best_of_all(graph, stages, links, memory):
    """Try all; those with a parameter in each stage come first."""
    end = len(graph.operators)
    allowed = [gap for gap in range(graph.inputs + 1, end) if gap not in graph.closed]
    under_way = in_flight(memory.schedule, stages, stages, memory.microbatches)
    best = {True: float("inf"), False: float("inf")}
    for chosen in combinations(allowed, stages - 1):
        gaps = (0, *chosen, end)
        parts = list(pairwise(gaps))
        if all(bytes_of(graph, *part, memory, under_way[stage]) <= memory.bytes
               for stage, part in enumerate(parts)):
            ends = (links[0], *links, links[0])
            idle = any(not any(one.parameters for one in graph.operators[begin:stop])
                       for begin, stop in parts)
            best[idle] = min(best[idle], max(time_of(graph, *part, ends[stage], ends[stage + 1])
                                             for stage, part in enumerate(parts)))
    return best[False] if best[False] < float("inf") else best[True]


@settings(max_examples=draws(400), deadline=None)
@given(graphs(), st.integers(1, 4), st.sampled_from(("gpipe", "1f1b")), st.integers(1, 5),
       st.integers(1, 400), st.lists(st.builds(Link, st.sampled_from((1.0, 3.0)),
                                               st.sampled_from((0.0, 2.0))),
                                     min_size=3, max_size=3))
def test_no_cut_is_better_than_the_one_that_is_found(graph, stages, schedule, microbatches, room,
                                                     links):
    memory = Memory(room, schedule, microbatches)
    links = links[:stages - 1]
    best = best_of_all(graph, stages, links or [Link()], memory)
    if stages > len(graph.boundaries) + 1:
        with pytest.raises(CutError, match="stages are wanted"):
            cut(graph, stages, link=links, memory=memory)
    elif best == float("inf"):
        with pytest.raises(CapacityError, match="no cut into"):
            cut(graph, stages, link=links, memory=memory)
    else:
        found = cut(graph, stages, link=links, memory=memory)
        assert found.slowest_s == pytest.approx(best)
        ends = (Link(), *links, Link())
        for stage, part in enumerate(pairwise(found.gaps)):
            assert found.seconds[stage] == pytest.approx(
                time_of(graph, *part, ends[stage], ends[stage + 1]))


@settings(max_examples=draws(100), deadline=None)
@given(graphs(), st.integers(100, 2000))
def test_the_memory_that_the_message_asks_for_is_enough(graph, room):
    memory = Memory(room << 20, microbatches=2)
    large = Graph(graph.operators, graph.inputs, graph.outputs,
                  tuple(size << 26 for size in graph.parameter_bytes), graph.saved_bytes,
                  graph.closed)
    if not large.boundaries:
        return
    try:
        cut(large, 2, memory=memory)
    except CapacityError as error:
        needs = float(str(error).partition("needs ")[2].split()[0])
        cut(large, 2, memory=Memory(round((needs + 0.1) * 2**20), microbatches=2))


def test_eight_stages_of_twelve_equal_layers_take_one_and_a_half_layers():
    layers = [Operator(f"{layer}.{part}", (1 + 2 * layer + part - 1,), 0, forward_s=1.0,
                       layer=f"layer {layer}") for layer in range(12) for part in range(2)]
    graph = Graph((Operator("input"), *layers), 1, (24,))
    assert cut(graph, 8).slowest_s == 3.0  # of operators that take 1
    assert cut(graph, 8, gaps=graph.layer_boundaries).slowest_s == 4.0


@pytest.mark.parametrize(("ranks", "local", "microbatches"), [
    (2, 2, 2), (2, 2, 4), (2, 3, 8), (3, 2, 6), (4, 2, 4), (4, 2, 8), (4, 2, 10), (4, 3, 3)])
def test_microbatches_under_way_are_those_of_torchs_interleaved_order(ranks, local, microbatches,
                                                                      monkeypatch):
    rounds = max(1, microbatches // ranks)
    most = [0] * (ranks * local)
    for rank in range(ranks):
        group = microbatches // rounds
        warm = torch_schedules._get_warmup_ops(
            rank, local, group, ranks, microbatches, multiply_factor=2)
        total = local * microbatches

        def forward(step, rank=rank, group=group):
            return (step // group) % local * ranks + rank

        def backward(step, rank=rank, group=group, warm=warm):
            return (local - 1 - (step - warm) // group % local) * ranks + rank

        order = torch_schedules._get_1f1b_rank_ops(
            local, ranks, warm, total - warm, warm, rank, forward, backward)
        now = [0] * len(most)
        for action in order:
            if action is not None:
                forwards = action.computation_type == torch_schedules.FORWARD
                now[action.stage_index] += 1 if forwards else -1
                most[action.stage_index] = max(most[action.stage_index], now[action.stage_index])
    assert in_flight("interleaved", ranks * local, ranks, microbatches) == most


@pytest.mark.parametrize(("arguments", "said"), [
    (("1f1", 2, 2, 4), "'1f1' is no schedule; did you mean '1f1b'?; possible are"),
    (("gpipe", 4, 2, 4), "4 stages on 2 ranks need interleaved"),
    (("interleaved", 5, 2, 4), "5 stages are wanted on 2 ranks: a multiple is possible"),
    (("interleaved", 4, 2, 5), "5 microbatches are wanted on 2 interleaved ranks: a multiple of"),
])
def test_a_schedule_that_cannot_be_is_one_sentence(arguments, said):
    with pytest.raises(CutError) as error:
        in_flight(*arguments)
    assert str(error.value).startswith(said) or said in str(error.value)
