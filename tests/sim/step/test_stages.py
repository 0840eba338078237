"""Stages of a pipeline, against a schedule that is worked out stage by stage."""

from __future__ import annotations

import heapq
import math

import pytest

from sim.schema.parallel_keys import Parallel
from sim.step.stages import slowest_stage, split_stages
from sim.workloads.layers import Layer, Tensor
from sim.workloads.model import Model, block_of
from sim.workloads.models import get_model
from tests.sim.step.test_mixture import one_f_one_b


def toy(costs):
    """A model of a block for each forward cost; backward takes twice as long."""
    return Model("toy", tuple(Layer(f"h.{number}.x", (), cost, 2 * cost)
                              for number, cost in enumerate(costs)), "sample", "made up", 1)


@pytest.mark.parametrize("costs", [(4, 4, 4, 4), (4, 4, 4, 5), (3, 4, 4, 2), (2, 6, 2, 2)])
@pytest.mark.parametrize("micro", [1, 2, 4, 8, 32])
def test_the_slowest_stage_holds_the_others_up(costs, micro):
    stage = slowest_stage(toy(costs), Parallel(pipeline=4), micro)
    once = sum(layer.forward_flops + layer.backward_flops for layer in stage.model.layers)
    wanted = one_f_one_b(4, micro, costs, [2 * cost for cost in costs])
    made = once * (micro + stage.bubble)
    # Fewer micro-steps than stages meet only where they are alike; then this is a bound.
    assert made == pytest.approx(wanted, rel=0.04) if micro >= 4 else 1 <= made / wanted < 1.15
    assert once == 3 * max(costs)


def zero_bubble(stages, micro, forward_s, input_s, weight_s):
    """When the last stage ends that does, whenever it is free, the first of these that it can.

    The gradient of an input; a forward pass, while no more wait for theirs than stages follow; the
    gradient of weights.
    """
    forward_ends, input_ends = {}, {}
    forwards, inputs, weights = [0] * stages, [0] * stages, [0] * stages
    free = [0.0] * stages
    times = [0.0]
    while min(weights) < micro:
        now = heapq.heappop(times)
        for stage in reversed(range(stages)):
            while free[stage] <= now:
                number, next_ = inputs[stage], forwards[stage]
                ready = (input_ends.get((stage + 1, number), math.inf) if stage < stages - 1
                         else forward_ends.get((stage, number), math.inf))
                come = forward_ends.get((stage - 1, next_), math.inf) if stage else 0.0
                if number < next_ and ready <= now:
                    free[stage] = input_ends[stage, number] = now + input_s
                    inputs[stage] += 1
                elif next_ < micro and next_ - number < stages - stage and come <= now:
                    free[stage] = forward_ends[stage, next_] = now + forward_s
                    forwards[stage] += 1
                elif weights[stage] < number:
                    free[stage] = now + weight_s
                    weights[stage] += 1
                else:
                    break
                heapq.heappush(times, free[stage])
    return max(free)


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("turns", [1, 2, 4])
def test_gradients_of_weights_fill_the_bubble(stages, turns):
    """Whole seconds, so that ends of passes that meet are the same number."""
    micro = turns * stages
    model = Model("toy", tuple(Layer(f"h.{number}.x", (Tensor(f"{number}", 1),), 1, 2)
                               for number in range(stages)), "sample", "made up", 1)
    stage = slowest_stage(model, Parallel(pipeline=stages, schedule="zero-bubble"), micro)
    assert 3 * (micro + stage.bubble) == zero_bubble(stages, micro, 1, 1, 1)
    plain = slowest_stage(model, Parallel(pipeline=stages), micro)
    assert stage.bubble == pytest.approx(plain.bubble / 3)


def test_blocks_are_dealt_to_pieces_in_turns():
    stages = [stage.layers for stage in
              split_stages(toy([1] * 8), Parallel(pipeline=2, interleave=2))]
    names = [[block_of(layer) for layer in layers] for layers in stages]
    assert names == [["h.0", "h.1", "h.4", "h.5"], ["h.2", "h.3", "h.6", "h.7"]]
    odd = [stage.layers for stage in
           split_stages(get_model("llama3-405b"), Parallel(pipeline=16))]
    counts = [len({block_of(layer) for layer in layers} - {""}) for layers in odd]
    assert sum(counts) == 126
    assert (counts[0], counts[-1]) == (7, 7)  # as its authors did (Llama 3, section 3.3.2)
    assert {layer.name for layer in odd[0]} >= {"embed_tokens"}
    assert {layer.name for layer in odd[-1]} >= {"norm", "lm_head"}
    whole = [layer for layers in odd for layer in layers]
    assert sorted(layer.name for layer in whole) == sorted(
        layer.name for layer in get_model("llama3-405b").layers)
