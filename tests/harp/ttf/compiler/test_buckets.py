"""Buckets against every possible choice of them."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harp.ttf.compiler.buckets import choose


def every_choice(calls, time_s, compile_s, most):
    sizes = sorted(calls)
    for count in range(1, min(most, len(sizes)) + 1):
        for smaller in combinations(sizes[:-1], count - 1):
            ends = (*smaller, sizes[-1])
            yield count * compile_s + sum(
                often * time_s(min(end for end in ends if end >= size))
                for size, often in calls.items())


@given(st.dictionaries(st.integers(1, 200), st.integers(1, 50), min_size=1, max_size=8),
       st.floats(0, 500), st.integers(1, 4))
def test_no_other_buckets_cost_less(calls, compile_s, most):
    def time_s(size):
        return 0.5 + 0.1 * size
    ends, cost = choose(calls, time_s, compile_s, most)
    assert cost == pytest.approx(min(every_choice(calls, time_s, compile_s, most)))
    assert len(ends) <= most
    assert ends[-1] == max(calls)
    assert set(ends) <= set(calls)


def test_dear_compilation_leaves_one_bucket_and_cheap_leaves_eight():
    calls = dict.fromkeys(range(1, 21), 10)
    assert choose(calls, float, 1e9)[0] == (20,)
    assert len(choose(calls, float, 0.0)[0]) == 8
