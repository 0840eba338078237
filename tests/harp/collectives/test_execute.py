"""Plans executed on real vectors, by ranks that run ahead of one another in any order.

Who pauses is drawn at random, and so are the slots of a channel. Results are compared with numpy's
on whole vectors.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.collectives.channels import memory_channels
from harp.collectives.execute import Execution, largest
from harp.collectives.ir import Buffer
from harp.collectives.registry import make_plan
from harp.collectives.window import NCCL_WINDOW, Window
from tests.support.collectives_cases import plans
from tests.support.levels import draws

if TYPE_CHECKING:
    from harp.collectives.collective_plan import Plan

class HesitantChannel:
    """A channel whose owner pauses at random, so that some ranks run far ahead of others."""

    def __init__(self, channel, random: np.random.Generator) -> None:
        self.channel, self.random = channel, random

    async def pause(self) -> None:
        for _ in range(int(self.random.integers(4)) ** 2):
            await asyncio.sleep(0)

    async def send(self, piece: np.ndarray) -> None:
        await self.pause()
        await self.channel.send(piece)

    async def receive(self, nbytes: int) -> np.ndarray:
        await self.pause()
        return await self.channel.receive(nbytes)


def execute(plan: Plan, inputs: np.ndarray, seed: int,
            window: Window = NCCL_WINDOW) -> list[Execution]:
    """Run all ranks to their end; refuses left-over pieces."""

    async def go() -> list[Execution]:
        random = np.random.default_rng(seed)
        ends = memory_channels(plan.ranks, window)
        channels = [{peer: HesitantChannel(end, random) for peer, end in own.items()}
                    for own in ends]
        ranks = [Execution(plan, rank, inputs.dtype, channels[rank].__getitem__, window)
                 for rank in range(plan.ranks)]
        for rank, own in zip(ranks, inputs, strict=True):
            rank.buffers[Buffer.DATA][:] = own.view(np.uint8)
        await asyncio.gather(*(rank.run() for rank in ranks))
        assert not any(end.waiting for own in ends for end in own.values())
        return ranks

    return asyncio.run(go())


def bounds(elements: int, parts: int) -> list[int]:
    return [i * elements // parts for i in range(parts + 1)]


def sparse_sum(parts: np.ndarray, ratio: float) -> np.ndarray:
    """The sum of each row's largest elements."""
    kept = min(max(int(ratio * parts.shape[1]), 1), parts.shape[1])
    total = np.zeros(parts.shape[1], parts.dtype)
    for row in parts:
        chosen = largest(row, kept)
        total[chosen] += row[chosen]
    return total


def run(name: str, inputs: np.ndarray, seed: int = 0, window: Window = NCCL_WINDOW,
        **parameters) -> list[np.ndarray]:
    """Execute the named plan and give each rank's DATA (an all-to-all's OUT)."""
    ranks, elements = inputs.shape
    unit = inputs.dtype.itemsize
    plan = make_plan(name, ranks=ranks, nbytes=elements * unit, unit_bytes=unit, **parameters)
    out = Buffer.OUT if "alltoall" in name and ranks > 1 else Buffer.DATA
    return [rank.buffers[out].view(inputs.dtype) for rank in execute(plan, inputs, seed, window)]


@st.composite
def worlds(draw: st.DrawFn):
    """Inputs of all ranks, a group size, a placement and a seed for the schedule."""
    ranks = draw(st.integers(1, 20))
    elements = draw(st.integers(0, 70))
    kind = draw(st.sampled_from(["<i2", "<i4", "<i8"]))
    seed = draw(st.integers(0, 2**32 - 1))
    inputs = np.random.default_rng(seed).integers(-500, 500, (ranks, elements)).astype(kind)
    group = draw(st.sampled_from([g for g in range(1, ranks + 1) if ranks % g == 0]))
    order = draw(st.permutations(range(ranks)))
    return inputs, {"group": group, "order": order, "seed": seed,
                    "chunk_bytes": draw(st.sampled_from([8, 40, 1 << 20])),
                    "window": Window(draw(st.sampled_from([1, 2, 8])),
                                     draw(st.sampled_from([8, 24, 512 << 10])))}


@pytest.mark.parametrize("name", ["ring", "tree", "halving-doubling", "2d"])
@given(world=worlds())
@settings(max_examples=draws(30), deadline=None)
def test_allreduce_is_the_sum(name, world):
    inputs, parameters = world
    for result in run(name, inputs, **parameters):
        np.testing.assert_array_equal(result, inputs.sum(axis=0, dtype=inputs.dtype))


@given(world=worlds())
@settings(max_examples=30, deadline=None)
def test_reduce_scatter_leaves_each_rank_its_shard_of_the_sum(world):
    inputs, parameters = world
    cut = bounds(inputs.shape[1], len(inputs))
    for rank, result in enumerate(run("reduce-scatter", inputs, **parameters)):
        own = slice(cut[rank], cut[rank + 1])
        np.testing.assert_array_equal(result[own], inputs[:, own].sum(axis=0, dtype=inputs.dtype))


@given(world=worlds())
@settings(max_examples=draws(30), deadline=None)
def test_allgather_is_the_concatenation(world):
    inputs, parameters = world
    cut = bounds(inputs.shape[1], len(inputs))
    whole = np.concatenate([row[cut[i]:cut[i + 1]] for i, row in enumerate(inputs)])
    for result in run("allgather", inputs, **parameters):
        np.testing.assert_array_equal(result, whole)


@given(world=worlds(), data=st.data())
@settings(max_examples=draws(30), deadline=None)
def test_broadcast_is_the_roots_vector(world, data):
    inputs, parameters = world
    root = data.draw(st.integers(0, len(inputs) - 1))
    for result in run("broadcast", inputs, root=root, **parameters):
        np.testing.assert_array_equal(result, inputs[root])


@pytest.mark.parametrize("name", ["alltoall", "hierarchical-alltoall"])
@given(world=worlds())
@settings(max_examples=draws(30), deadline=None)
def test_alltoall_is_the_transpose(name, world):
    inputs, parameters = world
    cut = bounds(inputs.shape[1], len(inputs))
    for rank, result in enumerate(run(name, inputs, **parameters)):
        wanted = inputs[:, cut[rank]:cut[rank + 1]].ravel()
        np.testing.assert_array_equal(result[:len(wanted)], wanted)


@given(world=worlds(), ratio=st.sampled_from([0.01, 0.1, 0.5, 1.0]))
@settings(max_examples=draws(20), deadline=None)
def test_topk_is_the_sum_of_what_was_selected(world, ratio):
    inputs, parameters = world
    wanted = sparse_sum(inputs, ratio) if len(inputs) > 1 else inputs[0]
    for result in run("topk", inputs, ratio=ratio, **parameters):
        np.testing.assert_array_equal(result, wanted)


@given(world=worlds(), ratio=st.sampled_from([0.01, 0.1, 0.5, 1.0]))
@settings(max_examples=draws(20), deadline=None)
def test_topk_on_the_shard_selects_from_each_hosts_sum(world, ratio):
    inputs, parameters = world
    group = parameters["group"]
    hosts = np.array(parameters["order"]).reshape(-1, group)
    sums = np.stack([inputs[host].sum(axis=0, dtype=inputs.dtype) for host in hosts])
    cut = bounds(inputs.shape[1], group)
    wanted = np.concatenate([
        sparse_sum(sums[:, a:b], ratio) if len(sums) > 1 else sums[0, a:b]
        for a, b in pairwise(cut)])
    for result in run("2d-topk", inputs, ratio=ratio, **parameters):
        np.testing.assert_array_equal(result, wanted)


@given(plan=plans(max_ranks=24), seed=st.integers(0, 1000))
@settings(max_examples=draws(20), deadline=None)
def test_no_schedule_deadlocks(plan, seed):
    kind = np.dtype("<f4" if plan.bits else f"<i{plan.unit_bytes}")
    execute(plan, np.ones((plan.ranks, plan.nbytes // plan.unit_bytes), kind), seed,
            Window(1, 64))


def test_a_send_waits_for_its_own_receive_and_for_nothing_else():
    """A rank of a ring whose right neighbour is slow passes on what has come all the same."""
    plan = make_plan("ring", ranks=3, nbytes=12)
    sent: list[int] = []

    class Left:
        async def receive(self, nbytes: int) -> np.ndarray:
            return np.zeros(nbytes, np.uint8)

        async def send(self, piece: np.ndarray) -> None:
            sent.append(len(piece))

    async def go() -> None:
        channel = Left()
        await Execution(plan, 0, "<f4", lambda peer: channel).run()

    asyncio.run(go())
    assert sent == [4] * 4


def test_a_stage_in_lock_step_waits_for_all_before_it():
    plan = make_plan("halving-doubling", ranks=4, nbytes=16)
    steps = list(plan.rank_steps(0))
    assert all(step.waits for step in steps)
    ring = [step.waits for step in make_plan("ring", ranks=4, nbytes=16).rank_steps(0)]
    assert ring == [True, False, False, True, False, False]


@given(plan=plans(max_ranks=12))
def test_stages_are_pipelined_as_their_phases_say(plan):
    for stage in plan.stages:
        moving = [phase for phase in stage.phases() if phase.local is None]
        assert all(phase.pipelined <= stage.pipelined for phase in moving)


def test_ranks_of_different_plans_are_refused():
    async def go() -> None:
        channels = memory_channels(2)
        plans = [make_plan("ring", ranks=2, nbytes=size) for size in (8, 16)]
        await asyncio.gather(*(Execution(plan, rank, "<f4", channels[rank].__getitem__).run()
                               for rank, plan in enumerate(plans)))

    with pytest.raises(ValueError, match="do not run the same plan"):
        asyncio.run(go())


def test_elements_of_another_size_than_the_plans_are_refused():
    with pytest.raises(ValueError, match="elements of float64 have 8 B, those of the plan 4 B"):
        Execution(make_plan("ring", ranks=2, nbytes=8), 0, "<f8", {}.__getitem__)
