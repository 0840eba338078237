"""The three views of a plan agree: all of a step, all of a rank, phases."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings

from harp.collectives.ir import Op
from harp.collectives.registry import make_plan, plan_names
from tests.support.collectives_cases import plans
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
