"""Plans executed on real vectors, by ranks that run ahead of one another in any order.

Each rank is a program of its own that waits for nothing but its own messages, as a real collective
does; which rank moves next is drawn at random. Results are compared with numpy's on whole vectors.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from collectives_cases import plans
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.collectives.ir import Buffer, LocalWork, Message, Op
from harp.collectives.registry import make_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harp.collectives.plan import Plan

Mail = dict[tuple[int, int, int], list[bytes]]


def pair_type(kind: np.dtype) -> np.dtype:
    return np.dtype([("value", kind), ("index", "<i4")])


def largest(values: np.ndarray, kept: int) -> np.ndarray:
    """Positions of the ``kept`` largest magnitudes, the first of equals."""
    return np.argsort(-np.abs(values.astype(np.int64)), kind="stable")[:kept]


class Rank:
    """One rank: its buffers and its program."""

    def __init__(self, plan: Plan, rank: int, kind: np.dtype) -> None:
        self.buffers = {b: np.zeros(size, np.uint8) for b, size in plan.buffers.items()}
        self.kind = kind
        self.program = plan.rank_steps(rank)

    def view(self, buffer: int, offset: int, length: int, kind: np.dtype | None = None):
        part = self.buffers[Buffer(buffer)][offset:offset + length]
        assert len(part) == length
        return part.view(kind or self.kind)

    def run(self, mail: Mail) -> Iterator[None]:
        """Go as far as the mail allows; yield where the rank must wait or may pause."""
        for step in self.program:
            for work in step.local:
                self.work(work)
            for m in step.sends:
                data = self.view(m.src_buffer, m.src_offset, m.length, np.uint8).tobytes()
                mail.setdefault((m.src, m.dst, m.step), []).append(data)
            yield
            for m in step.receives:
                while not mail.get((m.src, m.dst, m.step)):
                    yield
                self.receive(m, mail[m.src, m.dst, m.step].pop(0))

    def receive(self, m: Message, data: bytes) -> None:
        kind = np.dtype(np.uint8) if m.dst_buffer == Buffer.PAIRS else self.kind
        target = self.view(m.dst_buffer, m.dst_offset, m.length, kind)
        if m.op == Op.REDUCE:
            target += np.frombuffer(data, kind)
        else:
            target[:] = np.frombuffer(data, kind)

    def work(self, w: LocalWork) -> None:
        if w.op == Op.SELECT:
            dense = self.view(w.src_buffer, w.src_offset, w.src_length)
            pairs = self.view(w.dst_buffer, w.dst_offset, w.dst_length, pair_type(self.kind))
            pairs["index"] = largest(dense, len(pairs))
            pairs["value"] = dense[pairs["index"]]
        elif w.op == Op.SCATTER_ADD:
            pairs = self.view(w.src_buffer, w.src_offset, w.src_length, pair_type(self.kind))
            dense = self.view(w.dst_buffer, w.dst_offset, w.dst_length)
            dense[:] = 0
            np.add.at(dense, pairs["index"], pairs["value"])
        else:
            self.view(w.dst_buffer, w.dst_offset, w.dst_length)[:] = self.view(
                w.src_buffer, w.src_offset, w.src_length)


def execute(plan: Plan, inputs: np.ndarray, seed: int) -> list[Rank]:
    """Run all ranks, choosing at random who moves next; refuses a deadlock and left-over mail."""
    ranks = [Rank(plan, rank, inputs.dtype) for rank in range(plan.ranks)]
    for rank, own in zip(ranks, inputs, strict=True):
        rank.buffers[Buffer.DATA][:] = own.view(np.uint8)
    mail: Mail = {}
    running = [rank.run(mail) for rank in ranks]
    random = np.random.default_rng(seed)
    for _ in range(10_000_000):
        if not running:
            break
        # Bursts of one rank, so that some run far ahead of others.
        at = int(random.integers(len(running)))
        for _ in range(int(random.integers(1, 30))):
            if next(running[at], running) is running:
                del running[at]
                break
    assert not running
    assert not any(mail.values())
    return ranks


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


def run(name: str, inputs: np.ndarray, seed: int = 0, **parameters) -> list[np.ndarray]:
    """Execute the named plan and give each rank's DATA (an all-to-all's OUT)."""
    ranks, elements = inputs.shape
    unit = inputs.dtype.itemsize
    plan = make_plan(name, ranks=ranks, nbytes=elements * unit, unit_bytes=unit, **parameters)
    out = Buffer.OUT if "alltoall" in name and ranks > 1 else Buffer.DATA
    return [rank.buffers[out].view(inputs.dtype) for rank in execute(plan, inputs, seed)]


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
                    "chunk_bytes": draw(st.sampled_from([8, 40, 1 << 20]))}


@pytest.mark.parametrize("name", ["ring", "tree", "halving-doubling", "2d"])
@given(world=worlds())
@settings(max_examples=30, deadline=None)
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
@settings(max_examples=30, deadline=None)
def test_allgather_is_the_concatenation(world):
    inputs, parameters = world
    cut = bounds(inputs.shape[1], len(inputs))
    whole = np.concatenate([row[cut[i]:cut[i + 1]] for i, row in enumerate(inputs)])
    for result in run("allgather", inputs, **parameters):
        np.testing.assert_array_equal(result, whole)


@given(world=worlds(), data=st.data())
@settings(max_examples=30, deadline=None)
def test_broadcast_is_the_roots_vector(world, data):
    inputs, parameters = world
    root = data.draw(st.integers(0, len(inputs) - 1))
    for result in run("broadcast", inputs, root=root, **parameters):
        np.testing.assert_array_equal(result, inputs[root])


@pytest.mark.parametrize("name", ["alltoall", "hierarchical-alltoall"])
@given(world=worlds())
@settings(max_examples=30, deadline=None)
def test_alltoall_is_the_transpose(name, world):
    inputs, parameters = world
    cut = bounds(inputs.shape[1], len(inputs))
    for rank, result in enumerate(run(name, inputs, **parameters)):
        wanted = inputs[:, cut[rank]:cut[rank + 1]].ravel()
        np.testing.assert_array_equal(result[:len(wanted)], wanted)


@given(world=worlds(), ratio=st.sampled_from([0.01, 0.1, 0.5, 1.0]))
@settings(max_examples=40, deadline=None)
def test_topk_is_the_sum_of_what_was_selected(world, ratio):
    inputs, parameters = world
    wanted = sparse_sum(inputs, ratio) if len(inputs) > 1 else inputs[0]
    for result in run("topk", inputs, ratio=ratio, **parameters):
        np.testing.assert_array_equal(result, wanted)


@given(world=worlds(), ratio=st.sampled_from([0.01, 0.1, 0.5, 1.0]))
@settings(max_examples=40, deadline=None)
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
@settings(max_examples=40, deadline=None)
def test_no_schedule_deadlocks(plan, seed):
    kind = np.dtype(f"<i{plan.unit_bytes}")
    execute(plan, np.ones((plan.ranks, plan.nbytes // plan.unit_bytes), kind), seed)
