"""The checker accepts every plan and refuses every broken one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.collectives.collective_plan import Plan, Stage
from harp.collectives.ir import Buffer, LocalWork, Op, Transfers
from harp.collectives.registry import make_plan, plan_names
from harp.collectives.symbolic_check import PlanError, check
from tests.support.collectives_cases import divisors, plans
from tests.support.levels import draws, long_except

LARGER = [27, 31, 32, 36, 49, 60, 61, 64]
"""Primes, powers and products of small primes."""


@pytest.mark.parametrize("name", plan_names())
@pytest.mark.parametrize("counts", long_except(
    [range(1, 17), range(17, 25), LARGER], range(1, 17)), ids=lambda counts: f"to_{max(counts)}")
def test_all_plans_are_right_for_up_to_64_ranks(name, counts):
    """The work grows as the cube of the ranks, so that not all of the larger numbers are tried."""
    for ranks in counts:
        groups = divisors(ranks)
        # A tail that does not divide, and (alternating) fewer elements than ranks.
        for elements in (2 * ranks + 3, ranks // 2):
            group = groups[(ranks + elements) % len(groups)]
            check(make_plan(name, ranks=ranks, nbytes=4 * elements, group=group, chunk_bytes=64,
                            ratio=0.2, root=ranks // 3))


@given(plans(max_ranks=40))
@settings(max_examples=draws(150), deadline=None)
def test_any_plan_is_right(plan):
    check(plan)


def test_large_buffers_cost_no_more_than_small_ones():
    check(make_plan("ring", ranks=9, nbytes=(4 << 40) + 4))
    check(make_plan("2d-topk", ranks=12, nbytes=(4 << 40) + 4, group=4))


@dataclass(frozen=True, eq=False)
class Altered(Stage):
    """Another stage with the messages of one step changed."""

    stage: Stage
    at: int
    rows: Transfers

    @property
    def steps(self):
        return self.stage.steps

    def step(self, index):
        return self.rows if index == self.at else self.stage.step(index)

    def sends(self, rank):
        return self.stage.sends(rank)

    def receives(self, rank):
        return self.stage.receives(rank)

    def local_work(self, rank):
        return self.stage.local_work(rank)

    def phases(self):
        return self.stage.phases()


def altered(plan: Plan, step: int, change) -> Plan:
    """The plan with ``change`` applied to the messages of ``step``."""
    stages, first = list(plan.stages), 0
    for i, stage in enumerate(stages):
        if step - first < stage.steps:
            rows = stage.step(step - first)
            stages[i] = Altered(stage, step - first, change(rows))
            return replace(plan, stages=tuple(stages))
        first += stage.steps
    raise AssertionError(step)


def with_value(rows: Transfers, row: int, **values: int) -> Transfers:
    columns = {name: getattr(rows, name).copy() for name in values}
    for name, value in values.items():
        columns[name][row] = value
    return replace(rows, **columns)


def drop(rows, row, unit):
    return rows.where(np.arange(len(rows)) != row)


def double(rows, row, unit):
    return rows.where(np.append(np.arange(len(rows)), row))


def shift_target(rows, row, unit):
    return with_value(rows, row, dst_offset=rows.dst_offset[row] + unit)


def shift_source(rows, row, unit):
    return with_value(rows, row, src_offset=rows.src_offset[row] - unit)


def shift_both(rows, row, unit):
    return with_value(rows, row, src_offset=rows.src_offset[row] + unit,
                      dst_offset=rows.dst_offset[row] + unit)


def shorten(rows, row, unit):
    return with_value(rows, row, length=rows.length[row] - unit)


def swap_op(rows, row, unit):
    return with_value(rows, row, op=Op.COPY if rows.op[row] == Op.REDUCE else Op.REDUCE)


def to_itself(rows, row, unit):
    return with_value(rows, row, dst=rows.src[row])


def to_nobody(rows, row, unit):
    return with_value(rows, row, dst=1000)


MUTATIONS = (drop, double, shift_target, shift_source, shift_both, shorten, swap_op, to_itself,
             to_nobody)


@pytest.mark.parametrize("mutation", MUTATIONS)
@given(plan=plans(max_ranks=12, min_ranks=2, min_elements=1, max_elements=60), data=st.data())
@settings(max_examples=draws(60), deadline=None)
def test_no_single_fault_goes_unseen(mutation, plan, data):
    busy = [s for s in range(plan.steps) if len(plan.step(s))]
    if not busy:
        return
    step = data.draw(st.sampled_from(busy))
    row = data.draw(st.integers(0, len(plan.step(step)) - 1))
    broken = altered(plan, step, lambda rows: mutation(rows, row, plan.unit_bytes))
    with pytest.raises(PlanError):
        check(broken)


def test_messages_name_rank_range_and_fault():
    plan = make_plan("ring", ranks=3, nbytes=12)
    cases = [
        (0, drop, "at the end rank 0 lacks the contribution of rank 0 in bytes 8 to 12 of DATA"),
        (0, shift_target, "step 0: the message from rank 0 to rank 1 covers bytes 12 to 16 of "
                          "DATA, which has 12"),
        (3, swap_op, "step 3: rank 1 has the contribution of rank 0 more than once in bytes 8 to"),
        (2, double, "step 2: rank 1 is sent the same bytes twice at once: bytes 0 to 4 of DATA"),
        (1, shift_source, "step 1: rank 0 sends bytes while they are written: bytes 0 to 4 of"),
    ]
    for step, mutation, sentence in cases:
        with pytest.raises(PlanError) as error:
            check(altered(plan, step, lambda rows, m=mutation: m(rows, 0, 4)))
        assert sentence in str(error.value)


def test_a_byte_that_is_being_sent_must_not_be_written():
    plan = make_plan("allgather", ranks=2, nbytes=8)

    def clash(rows):
        return Transfers.build(step=0, src=rows.src, dst=rows.dst, op=Op.COPY, length=4,
                               src_offset=rows.src_offset, dst_offset=[4, 0])

    assert clash(plan.step(0)).dst_offset.tolist() == [4, 0]
    with pytest.raises(PlanError, match="rank 1 sends bytes while they are written"):
        check(altered(plan, 0, clash))


def test_bytes_must_be_added_where_they_belong():
    plan = make_plan("ring", ranks=4, nbytes=160)
    with pytest.raises(PlanError, match="step 0: rank 1 adds bytes that belong elsewhere: bytes 1"):
        check(altered(plan, 0, lambda rows: shift_target(rows, 0, -4)))


def test_unknown_bytes_must_not_be_sent():
    plan = make_plan("allgather", ranks=3, nbytes=12)
    with pytest.raises(PlanError, match="step 0: rank 0 sends what it does not hold: bytes 4 to 8"):
        check(altered(plan, 0, lambda rows: with_value(rows, 0, src_offset=4, dst_offset=4)))


def test_ranges_that_slide_against_each_other_are_refused_in_bounded_time():
    plan = make_plan("broadcast", ranks=2, nbytes=1 << 40, chunk_bytes=1 << 40)
    with pytest.raises(PlanError, match="do not line up"):
        check(altered(plan, 0, lambda rows: shift_target(rows, 0, 4)))


@dataclass(frozen=True, eq=False)
class OtherWork(Altered):
    """Another stage with its local work changed."""

    change: object = None

    def local_work(self, rank):
        return (self.change(work) for work in self.stage.local_work(rank) if self.change(work))


def with_work(plan: Plan, number: int, change) -> Plan:
    stages = list(plan.stages)
    stages[number] = OtherWork(stages[number], -1, Transfers.empty(), change)
    return replace(plan, stages=tuple(stages))


def test_local_work_is_checked_too():
    sparse = make_plan("topk", ranks=3, nbytes=120)
    for number, change, sentence in (
        (0, lambda w: w._replace(src_length=60) if w.rank == 1 else w, ""),
        (0, lambda w: None if w.rank == 1 else w, "rank 1 sends what it does not hold"),
        (2, lambda w: None if w.rank == 1 else w, "rank 1 lacks the contribution of rank 0"),
        (2, lambda w: w._replace(slots=2, src_length=16), "lacks the contribution of rank 2"),
    ):
        broken = with_work(sparse, number, change)
        if sentence:
            with pytest.raises(PlanError, match=sentence):
                check(broken)
    exchange = make_plan("alltoall", ranks=3, nbytes=120)
    with pytest.raises(PlanError, match="rank 2 lacks the contribution of rank 2 in bytes 80 to"):
        check(with_work(exchange, 0, lambda w: None if w.rank == 2 else w))


def test_selection_needs_a_whole_sum():
    plan = make_plan("2d-topk", ranks=4, nbytes=160, group=2)
    with pytest.raises(PlanError, match="selects or adds up a range that is not whole"):
        check(altered(plan, 0, lambda rows: shorten(rows, 0, 4)))


def test_local_work_names_its_buffers():
    (work,) = make_plan("topk", ranks=2, nbytes=400, value_bytes=2).stages[0].local_work(1)
    assert work == LocalWork(0, 1, Op.SELECT, Buffer.DATA, 0, 400, Buffer.PAIRS, 6, 6, 1)


def test_blocks_shifted_by_one_element_line_up_in_as_many_rounds_as_it_takes():
    """Found by hypothesis: an odd count over two ranks cuts OUT at every element."""
    check(make_plan("alltoall", ranks=2, nbytes=262, unit_bytes=2))
