"""Recursive halving and doubling: the cost that the literature gives, and its first step."""

from __future__ import annotations

from math import floor, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.collectives.registry import make_plan
from tests.support.levels import draws
from tests.support.plan_times import ALPHA_S, RATE, SIZES, close, plan_s


@given(st.integers(2, 1024), st.sampled_from(SIZES))
@settings(max_examples=draws(60), deadline=None)
def test_halving_doubling(n, size):
    power = 1 << floor(log2(n))
    wanted = 2 * log2(power) * ALPHA_S + 2 * (power - 1) / power * size / RATE
    wanted += 2 * (ALPHA_S + size / RATE) if n != power else 0
    value = plan_s(make_plan("halving-doubling", ranks=n, nbytes=size))
    if size // 4 >= power:
        assert close(value, wanted, 8 * 10)
    else:
        # Messages of no bytes do not exist, but each of the steps still has one that has some.
        assert value == pytest.approx(wanted, abs=8 * 10 * 4 / RATE)


def test_halving_starts_with_neighbours():
    first = make_plan("halving-doubling", ranks=8, nbytes=800).step(0)
    assert (first.src ^ first.dst == 1).all()
    assert (first.length == 400).all()
