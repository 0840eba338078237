"""Stages of a pipeline: which layers each one has, and which of them holds the others up.

Blocks are dealt in order to stages times ``interleave`` pieces, as many to each as there are; what
does not divide goes to pieces in the middle. Layers before the first block belong to the first
piece, those behind the last block to the last one. Pieces go to stages in turns, or in a V, there
and back, so that the first stage has the first piece and the last.

A stage that computes t for each micro-step waits for others while the pipeline fills and drains: in
1F1B for all that the stages before it compute on a micro-step, and for what those behind it do,
less what it can do meanwhile: as many forward passes as there are stages behind it when it fills,
and as many backward passes when it drains. Where stages are alike the sum is the bubble of p - 1
micro-steps of Narayanan et al., SC 2021, section 2.2.1; it is never more than one micro-step of
each other stage (Zheng et al., OSDI 2022 (Alpa), equation 2). With v pieces a stage it is a v-th
(Narayanan, section 2.2.2).

The backward pass of a matrix product is two products, and only the gradient of its input is waited
for. Where those of weights fill a stage's waiting (Qi et al., ICLR 2024, ZB-H1, table 1), it waits
(p - 1)(F + B - W) instead of (p - 1)(F + B + W), and with v pieces a stage a v-th as well
(ScheduleInterleavedZeroBubble of torch.distributed.pipelining).

Two pieces in a V leave ZB-V (ibid., section 6; ScheduleZBVZeroBubble) to wait for the first pass or
behind the last: (p - 1) B of a piece. The paper counts none, since its stages begin the next step
at different times; torch's wait for the norm of all gradients. Of few micro-steps, and where B is
long, the first one's way there and back takes longer: 2 (p - 1)(F + B) of a piece, less what the
first stage does meanwhile, which is the forward passes of p - 1 others through both pieces, and
gradients of weights of as many. DualPipeV waits (p - 1)(F + 2 B - W) of a piece, where passes that
overlap take their sum (deepseek-ai/DualPipe, README.md, table of bubbles). What a stage computes
again stands before the gradient of its input, and is part of B. Steps in torch's order of passes
take as long: in the first one's exactly, in ZB-V's within 0.5 %, in DualPipeV's up to 3 % less.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from sim.workloads.model import block_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.schema.parallel_keys import Parallel
    from sim.step.recipe import Recipe
    from sim.workloads.layers import Layer
    from sim.workloads.model import Model


@dataclass(frozen=True)
class Stage:
    """The stage that holds the others up."""

    model: Model
    """Its layers."""
    bubble: float
    """Micro-steps of its own for which it waits for others in a step."""


def slowest_stage(recipe: Recipe) -> Stage:
    """The stage with most FLOPs, of those of the whole model; of several that with most parameters.

    What a stage computes again counts to its backward pass, before the gradient of its input.
    """
    layout = recipe.layout
    if layout.pipeline == 1:
        return Stage(recipe.model, 0.0)
    stages = split_stages(recipe.model, layout)
    forward = [stage.forward_flops for stage in stages]
    backward = [sum(map(recipe.backward_flops, stage.layers)) for stage in stages]
    both = [sum(passes) for passes in zip(forward, backward, strict=True)]
    slowest = max(range(len(stages)), key=lambda number: (both[number], stages[number].parameters))
    if layout.is_v:
        weights = [_weights_flops(stage) for stage in stages]
        waited = _waited_in_v(recipe, slowest, forward, backward, weights)
        return Stage(stages[slowest], waited / both[slowest])
    bubble = waits_of(slowest, forward, both, recipe.accumulation) / layout.interleave
    if layout.schedule == "zero-bubble":
        bubble *= 1 - 2 * _weights_flops(stages[slowest]) / both[slowest]
    return Stage(stages[slowest], bubble)


def waits_of(slowest: int, forward: Sequence[float], both: Sequence[float], micro: int) -> float:
    """Micro-steps of its own for which the slowest stage of 1F1B waits for others in a step.

    ``forward`` and ``both`` passes of a micro-step are given for each stage, in any unit.
    """
    behind, later = sum(both[slowest + 1:]), len(both) - 1 - slowest
    if micro > later:
        back = both[slowest] - forward[slowest]
        behind = min(behind, max(behind - later * forward[slowest], 0)
                     + max(behind - later * back, 0))
    return (sum(both[:slowest]) + behind) / both[slowest]


def _weights_flops(stage: Model) -> int:
    """FLOPs of the gradients of its weights."""
    return sum(each.forward_flops for each in stage.layers if each.tensors or each.expert_tensors)


def _waited_in_v(recipe: Recipe, own: int, *passes: Sequence[int]) -> float:
    """FLOPs of others for which stage ``own`` waits where two pieces of each lie in a V.

    ``passes`` are forward, backward, and of that gradients of weights, for each stage.
    """
    forward, backward, weights = (sum(each) - each[own] for each in passes)
    inputs = backward - weights
    if recipe.layout.schedule == "dualpipe-v":
        return (forward + 2 * inputs - weights) / 2
    others = min(recipe.accumulation, recipe.layout.pipeline) - 1
    late = min(recipe.accumulation - 1 - others, recipe.layout.pipeline - 1)
    return max(inputs / 2, forward + inputs - others * passes[0][own] - late * passes[2][own])


def split_stages(model: Model, layout: Parallel) -> tuple[Model, ...]:
    """The part of the model that each stage has; made once for each split."""
    key = layout.pipeline, layout.interleave, layout.is_v
    if key not in model.splits:
        model.splits[key] = tuple(replace(model, layers=tuple(layers))
                                  for layers in _deal_layers(model, layout))
    return model.splits[key]


def _deal_layers(model: Model, layout: Parallel) -> list[list[Layer]]:
    runs = [list(layers) for _, layers in groupby(model.layers, block_of)]
    blocks = [run for run in runs if block_of(run[0])]
    pieces = layout.pipeline * layout.interleave
    least, more = divmod(len(blocks), pieces)
    first = (pieces - more) // 2
    counts = [least + (first <= number < first + more) for number in range(pieces)]
    stages: list[list[Layer]] = [[] for _ in range(layout.pipeline)]
    # A layer between blocks (an encoder's last norm) goes with the block before it.
    held: list[list[Layer]] = []
    for run in runs:
        if block_of(run[0]):
            held.append([*run] if held else [*_before(runs), *run])
        elif held:
            held[-1] += run
    start = 0
    for number, count in enumerate(counts):
        turn, stage = divmod(number, layout.pipeline)
        if layout.is_v and turn:
            stage = layout.pipeline - 1 - stage
        for block in held[start:start + count]:
            stages[stage] += block
        start += count
    return stages


def _before(runs: list[list[Layer]]) -> list[Layer]:
    """Layers before the first block."""
    return [] if block_of(runs[0][0]) else runs[0]
