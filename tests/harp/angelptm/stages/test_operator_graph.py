"""A model's operators: what crosses each boundary, and what ranges hold."""

from __future__ import annotations

from hypothesis import given

from harp.angelptm import pipeline
from harp.angelptm.stages.operator_graph import Graph, Operator
from tests.harp.angelptm.stages.models import WIDTH, batch, made
from tests.harp.angelptm.stages.test_cuts import crossing_of, graphs


def test_every_transfer_of_a_value_that_skips_stages_is_counted():
    example, _ = batch("t5", 2)
    graph = pipeline(made("t5"), example, stages=2).graph
    encoded = next(number for number in graph.outputs if number != graph.outputs[0])
    assert graph.operators[encoded].value_bytes == 2 * 12 * WIDTH * 4
    last = max(graph.boundaries)
    assert encoded in graph.crossing(last)
    assert 1 in graph.crossing(encoded)  # the decoder's tokens, which the encoder's stages relay


@given(graphs())
def test_the_bytes_over_a_boundary_are_those_of_the_values_that_cross_it(graph):
    for gap in range(len(graph.operators) + 1):
        values = crossing_of(graph, gap)
        own = [graph.operators[value] for value in sorted(values)]
        assert graph.crossing_bytes[gap] == sum(one.value_bytes for one in own)
        assert graph.gradient_bytes[gap] == sum(
            one.value_bytes for one in own if one.differentiable)
        if 0 < gap < len(graph.operators):
            assert graph.crossing(gap) == sorted(values)


@given(graphs())
def test_a_block_that_operators_of_a_range_share_counts_once(graph):
    for start in range(len(graph.operators)):
        for found, used, sizes in (
                (graph.parameters_from(start), "parameters", graph.parameter_bytes),
                (graph.saved_from(start), "saved", graph.saved_bytes)):
            for end in range(start, len(graph.operators) + 1):
                blocks = {block for one in graph.operators[start:end]
                          for block in getattr(one, used)}
                assert found[end] == sum(sizes[block] for block in blocks)


def test_boundaries_lie_behind_the_inputs_and_those_of_layers_where_the_layer_changes():
    layers = ["", "a", "a", "b", "b", "c"]
    graph = Graph(tuple(Operator(f"o{number}", layer=layer)
                        for number, layer in enumerate(layers)), 1, (5,), closed=frozenset({3}))
    assert graph.boundaries == [2, 4, 5]
    assert graph.layer_boundaries == [5]
