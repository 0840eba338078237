"""Recursive doubling: the cost that the literature gives, and the partners of a rank."""

from __future__ import annotations

from math import floor, log2

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.collectives.doubling import find_partners
from harp.collectives.registry import make_plan
from tests.support.plan_times import ALPHA_S, RATE, SIZES, plan_s


@given(st.integers(2, 1024), st.sampled_from(SIZES))
@settings(max_examples=60, deadline=None)
def test_recursive_doubling(n, size):
    power = 1 << floor(log2(n))
    steps = log2(power) + (2 if n != power else 0)
    value = plan_s(make_plan("recursive-doubling", ranks=n, nbytes=size))
    assert value == pytest.approx(steps * (ALPHA_S + size / RATE))


def test_partners_link_all_ranks_and_know_each_other():
    for ranks in range(1, 40):
        partners = [find_partners(rank, ranks) for rank in range(ranks)]
        assert all(rank in partners[peer] for rank in range(ranks) for peer in partners[rank])
        assert ranks == 1 or nx.is_connected(nx.Graph(dict(enumerate(partners))))
