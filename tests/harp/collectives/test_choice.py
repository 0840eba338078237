"""The choice between algorithms: by ports, messages and copies, against sums by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from harp.collectives.blocks import Blocks
from harp.collectives.choice import Rates, choose, combine, dispatch, plan_s
from tests.harp.collectives.test_alltoallv import routed
from tests.support.levels import draws

HOSTS = (0, 0, 1, 1)
PLAIN = Rates(port_bytes_s=1e6, memory_bytes_s=1e7, latency_s=2.0, memory_latency_s=0.5,
              message_s=0.25)


def to_other_host(nbytes, *members):
    return Blocks(np.array([0]), np.array([[rank in members for rank in range(4)]]),
                  np.array([nbytes]))


def test_the_time_is_that_of_the_busiest_port_and_rank():
    both = to_other_host(3_000_000, 2, 3)
    # Two copies of 3 MB leave one port, in two messages.
    assert plan_s(dispatch(both, "direct", HOSTS), HOSTS, PLAIN) == pytest.approx(2 + 0.5 + 6)
    # One leaves; then rank 2 passes 3 MB on by memory.
    assert plan_s(dispatch(both, "once-per-host", HOSTS), HOSTS, PLAIN) == pytest.approx(
        (2 + 0.25 + 3) + (0.5 + 0.3))
    assert plan_s(combine(both, "once-per-host", HOSTS), HOSTS, PLAIN) == pytest.approx(
        (2 + 0.25 + 3) + (0.5 + 0.3))


def test_tokens_that_several_ranks_of_a_host_want_cross_once():
    for make in (dispatch, combine):
        assert choose(make, to_other_host(1 << 20, 2, 3), HOSTS) == "once-per-host"
        assert choose(make, to_other_host(1 << 20, 2), HOSTS) == "direct"


def test_many_small_messages_are_gathered_within_the_host():
    ranks, group = 32, 8
    hosts = [rank // group for rank in range(ranks)]
    rates = replace(Rates(), latency_s=1e-6, memory_latency_s=1e-6)
    small, large = (Blocks.of_counts(np.full((ranks, ranks), size)) for size in (8, 1 << 20))
    assert choose(dispatch, small, hosts, rates) == "hierarchical"
    assert choose(dispatch, large, hosts, rates) == "direct"


def test_a_block_for_several_hosts_goes_directly_or_by_local_ranks():
    assert choose(combine, to_other_host(1 << 20, 1, 2, 3), HOSTS) == "direct"


@given(routed())
@settings(max_examples=draws(60), deadline=None)
def test_no_other_way_is_faster(case):
    blocks, host = case
    for make, ways in ((dispatch, ("direct", "hierarchical", "once-per-host")),
                       (combine, ("direct", "once-per-host"))):
        best = choose(make, blocks, host, PLAIN)
        times = {way: plan_s(make(blocks, way, host), host, PLAIN) for way in ways}
        assert times[best] == min(times.values())
