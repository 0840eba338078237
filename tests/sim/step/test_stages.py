"""Stages of a pipeline, against a schedule that is worked out stage by stage."""

from __future__ import annotations

import heapq
import math
from types import SimpleNamespace

import pytest

from sim.schema.parallel_keys import Parallel
from sim.schema.parameters import load_framework
from sim.step.recipe import Recipe
from sim.step.stages import slowest_stage, split_stages
from sim.workloads.layers import Layer, Tensor
from sim.workloads.model import Model, block_of
from sim.workloads.models import get_model
from tests.sim.step.test_mixture import one_f_one_b


def slowest(model, layout, micro, recompute="none"):
    return slowest_stage(Recipe(model, 1, load_framework("ddp", {}), layout=layout,
                                accumulation=micro, recompute=recompute))


def toy(costs):
    """A model of a block for each forward cost; backward takes twice as long."""
    return Model("toy", tuple(Layer(f"h.{number}.x", (), cost, 2 * cost)
                              for number, cost in enumerate(costs)), "sample", "made up", 1)


@pytest.mark.parametrize("costs", [(4, 4, 4, 4), (4, 4, 4, 5), (3, 4, 4, 2), (2, 6, 2, 2)])
@pytest.mark.parametrize("micro", [1, 2, 4, 8, 32])
@pytest.mark.parametrize(("recompute", "backward"), [("none", 2), ("full", 3)])
def test_the_slowest_stage_holds_the_others_up(costs, micro, recompute, backward):
    stage = slowest(toy(costs), Parallel(pipeline=4), micro, recompute)
    once = (1 + backward) * sum(layer.forward_flops for layer in stage.model.layers)
    wanted = one_f_one_b(4, micro, costs, [backward * cost for cost in costs])
    made = once * (micro + stage.bubble)
    if micro >= 4:
        assert made == pytest.approx(wanted, rel=0.05 if recompute == "full" else 0.04)
    else:  # fewer micro-steps than stages meet only where they are alike; then this is a bound
        assert 1 <= made / wanted < 1.15
    assert once == (1 + backward) * max(costs)


def test_blocks_that_are_repeated_may_outlast_an_output_layer_that_is_not():
    """Both passes take 24 and 27, and with what is repeated 32 and 31."""
    layers = (Layer("h.0.x", (), 8, 16), Layer("h.1.x", (), 4, 8), Layer("head", (), 5, 10))
    model = Model("toy", layers, "sample", "made up", 1)
    for recompute, found in (("none", "h.1"), ("full", "h.0")):
        stage = slowest(model, Parallel(pipeline=2), 4, recompute).model
        assert block_of(stage.layers[0]) == found


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
    layout = Parallel(pipeline=stages, schedule="zero-bubble")
    stage = slowest(model, layout, micro)
    assert 3 * (micro + stage.bubble) == zero_bubble(stages, micro, 1, 1, 1)
    plain = slowest(model, Parallel(pipeline=stages), micro)
    assert stage.bubble == pytest.approx(plain.bubble / 3)
    again = slowest(model, layout, micro, "full")
    assert 4 * (micro + again.bubble) == zero_bubble(stages, micro, 1, 2, 1)
    assert again.bubble == pytest.approx(plain.bubble / 2)  # half as long again


TORCHS = {"1f1b": "ScheduleInterleaved1F1B", "zero-bubble": "ScheduleInterleavedZeroBubble",
          "zb-v": "ScheduleZBVZeroBubble", "dualpipe-v": "ScheduleDualPipeV"}


def torchs_orders(schedule, stages, pieces, micro):
    """Passes of each stage in torch's order: kind, piece, micro-step; overlapped ones as one."""
    from torch.distributed.pipelining import schedules

    piece = SimpleNamespace(num_stages=stages * pieces, group_size=stages, group_rank=0,
                            submod=None)
    orders = getattr(schedules, TORCHS[schedule])([piece] * pieces, micro).pipeline_order
    return [[[(each.computation_type.value, each.stage_index, each.microbatch_index)
              for each in done.sub_actions or (done,)]
             for done in orders[stage] if done is not None] for stage in range(stages)]


def end_of(orders, last, seconds):
    """Walk the orders, and give the end of the last pass.

    A pass begins when its stage is free and the passes that it needs have ended. Overlapped passes
    take their sum. ``last`` is the number of the last piece.
    """
    ends, free, at = {}, [0.0] * len(orders), [0] * len(orders)

    def needs(kind, piece, number):
        if kind == "F" and piece:
            return [("F", piece - 1, number)]
        if kind in ("I", "B"):
            return [("I", piece + 1, number) if piece < last else ("F", piece, number)]
        return []

    while any(place < len(order) for place, order in zip(at, orders, strict=True)):
        for stage, order in enumerate(orders):
            passes = order[at[stage]] if at[stage] < len(order) else []
            before = [need for each in passes for need in needs(*each)]
            if not passes or any(need not in ends for need in before):
                continue
            begin = max([free[stage], *(ends[need] for need in before)])
            free[stage] = begin + sum(seconds[kind] for kind, *_ in passes)
            at[stage] += 1
            ends |= {("I" if kind == "B" else kind, *which): free[stage]
                     for kind, *which in passes}
    return max(free)


def halves(blocks, products, scores):
    """A model of blocks with a product of weights and one of activations, by FLOPs forward."""
    return Model("toy", tuple(layer for number in range(blocks) for layer in (
        Layer(f"h.{number}.w", (Tensor(f"{number}", 1),), products, 2 * products),
        Layer(f"h.{number}.s", (), scores, 2 * scores))), "sample", "made up", 1)


def both_ends(schedule, stages, pieces, micro, products, scores, recompute="none"):
    """When a step ends, by the simulator and in torch's order of passes.

    What is computed again stands before the gradient of the input.
    """
    layout = Parallel(pipeline=stages, interleave=pieces, schedule=schedule)
    stage = slowest(halves(stages * pieces, products, scores), layout, micro, recompute)
    forward, again = products + scores, (products + scores) * (recompute == "full")
    once = pieces * (3 * forward + again)
    seconds = {"F": forward, "I": again + products + 2 * scores, "W": products,
               "B": again + 2 * forward}
    return once * (micro + stage.bubble), end_of(
        torchs_orders(schedule, stages, pieces, micro), stages * pieces - 1, seconds)


COSTS = [(4, 0), (4, 1), (4, 4), (1, 4)]
"""FLOPs of products of weights, and of activations: none, fewer, as many, more."""


@pytest.mark.parametrize(("products", "scores"), COSTS)
@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("pieces", [1, 2, 4])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_zero_bubble_in_pieces_takes_as_long_as_torchs_order(
        stages, pieces, products, scores, recompute):
    """(p - 1)(F + B - W) of a piece; of the gradient of its input B includes what is repeated."""
    for micro in (stages, 4 * stages):
        made, wanted = both_ends("zero-bubble", stages, pieces, micro, products, scores, recompute)
        assert made == pytest.approx(wanted, rel=1e-9)
    again = (products + scores) * (recompute == "full")
    waited = made - 4 * stages * pieces * (3 * (products + scores) + again)
    assert waited == pytest.approx((stages - 1) * (products + 3 * scores + again), rel=1e-9)


@pytest.mark.parametrize(("products", "scores"), COSTS)
@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_zb_v_takes_as_long_as_torchs_order(stages, products, scores, recompute):
    """With any number of micro-steps; its bubble is (p - 1) B where F = B = W."""
    for micro in range(1, 4 * stages):
        made, wanted = both_ends("zb-v", stages, 2, micro, products, scores, recompute)
        assert made == pytest.approx(wanted, rel=0.01)
        if micro >= 2 * stages - 1 and not scores and recompute == "none":
            assert made == wanted == 6 * micro * products + (stages - 1) * products


@pytest.mark.parametrize(("products", "scores"), COSTS)
@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_dualpipe_v_takes_as_long_as_torchs_order(stages, products, scores, recompute):
    """Its authors' formula is exact where F = B = W, else some percent above."""
    for micro in (2 * stages, 5 * stages):
        made, wanted = both_ends("dualpipe-v", stages, 2, micro, products, scores, recompute)
        alike = not scores and recompute == "none"
        assert made == pytest.approx(wanted, rel=1e-9 if alike else 0.04)
        assert made >= wanted * (1 - 1e-9)


def test_a_v_has_first_and_last_piece_on_the_first_stage():
    layout = Parallel(pipeline=2, interleave=2, schedule="zb-v")
    names = [[block_of(layer) for layer in stage.layers]
             for stage in split_stages(toy([1] * 8), layout)]
    assert names == [["h.0", "h.1", "h.6", "h.7"], ["h.2", "h.3", "h.4", "h.5"]]
    first, second = (({layer.name for layer in stage.layers}) for stage in split_stages(
        get_model("llama2-7b"), layout))
    assert first >= {"embed_tokens", "norm", "lm_head"}
    assert not second & {"embed_tokens", "norm", "lm_head"}


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
