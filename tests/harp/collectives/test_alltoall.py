"""All-to-alls, direct and hierarchical: their cost in closed form, and their messages."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from harp.collectives.registry import make_plan
from tests.support.plan_times import ALPHA_S, RATE, SIZES, close, phase_s, plan_s


@given(st.integers(2, 128), st.sampled_from(SIZES))
@settings(max_examples=40, deadline=None)
def test_direct_alltoall(n, size):
    value = plan_s(make_plan("alltoall", ranks=n, nbytes=size))
    assert close(value, ALPHA_S + (n - 1) / n * size / RATE, 4 * n)


@given(st.integers(2, 20), st.integers(2, 8), st.sampled_from(SIZES))
@settings(max_examples=40, deadline=None)
def test_hierarchical_alltoall(hosts, group, size):
    plan = make_plan("hierarchical-alltoall", ranks=hosts * group, nbytes=size, group=group)
    intra, inter = plan.phases()
    slack = 4 * hosts * group * group
    assert close(phase_s(intra), ALPHA_S + (group - 1) / group * size / RATE, slack)
    assert close(phase_s(inter, group),
                 ALPHA_S + (hosts - 1) / hosts * group * size / RATE, slack)


def test_direct_alltoall_is_one_step_of_independent_messages():
    plan = make_plan("alltoall", ranks=5, nbytes=100)
    assert plan.steps == 1
    (step,) = plan.rank_steps(2)
    assert len(step.sends) == len(step.receives) == 4
    assert sum(w.src_length for w in step.local) == 20
    (phase,) = plan.phases()
    assert not phase.pipelined
    assert (len(phase.src), phase.steps) == (20, 1)
