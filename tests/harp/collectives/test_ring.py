"""Rings: the cost that the literature gives, and phases."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from harp.collectives.registry import make_plan
from tests.support.plan_times import ALPHA_S, RATE, SIZES, close, phase_s, plan_s


@given(st.integers(2, 300), st.sampled_from(SIZES))
@settings(max_examples=60, deadline=None)
def test_ring(n, size):
    slack = 4 * n
    half = (n - 1) * (ALPHA_S + size / n / RATE)
    assert close(plan_s(make_plan("ring", ranks=n, nbytes=size)), 2 * half, 2 * slack)
    assert close(plan_s(make_plan("reduce-scatter", ranks=n, nbytes=size)), half, slack)
    assert close(plan_s(make_plan("allgather", ranks=n, nbytes=size)), half, slack)


@given(st.integers(2, 40), st.integers(2, 16), st.sampled_from(SIZES))
@settings(max_examples=60, deadline=None)
def test_2d(hosts, group, size):
    plan = make_plan("2d", ranks=hosts * group, nbytes=size, group=group)
    first, inter, last = plan.phases()
    wanted = (group - 1) * (ALPHA_S + size / group / RATE)
    assert close(phase_s(first), wanted, 4 * group)
    assert close(phase_s(last), wanted, 4 * group)
    # The g rings leave the host through one port: together they carry the whole buffer.
    assert close(phase_s(inter, group), 2 * (hosts - 1) * (ALPHA_S + size / hosts / RATE),
                 8 * hosts * group)


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


def test_ring_of_sixteen_thousand_has_one_message_a_rank_and_step():
    plan = make_plan("ring", ranks=16384, nbytes=1 << 30)
    program = list(plan.rank_steps(5))
    assert len(program) == plan.steps == 2 * 16383
    assert {(len(s.sends), len(s.receives)) for s in program} == {(1, 1)}
    assert len(plan.step(20000)) == 16384
    (phase,) = plan.phases()
    assert phase.bytes_per_edge.tolist() == [2 * ((1 << 30) - (1 << 16))] * 16384
