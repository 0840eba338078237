"""Runs from which intervals of corrections are derived."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.network.corrections import FORKS, Interval
from sim.schema import load
from sim.validation.correction_runs import CAUSES, Derived, made_of, permutation
from sim.validation.fidelities import FILE
from tests.support.levels import draws


@settings(max_examples=draws(30))
@given(st.sampled_from([(8, 2), (12, 3), (16, 4), (32, 4)]), st.integers(0, 10**6))
def test_a_permutation_sends_from_each_host_to_another_one(size: tuple[int, int],
                                                           seed: int) -> None:
    hosts, leaves = size
    far = permutation(hosts, leaves, seed)
    assert sorted(far) == list(range(hosts))
    assert all(host != other for host, other in enumerate(far))
    if seed % 2:
        below = hosts // leaves
        assert all(host // below != other // below for host, other in enumerate(far))
    assert far == permutation(hosts, leaves, seed)


@pytest.mark.parametrize("tcp", [False, True])
def test_cases_are_of_valid_clusters_and_each_has_a_name_of_its_own(tcp: bool) -> None:
    for _, cases in CAUSES:
        made = list(cases(tcp=tcp))
        assert len({case.name for case in made}) == len(made) >= 18
        assert ("tcp" in load(FILE, made[0].changes).scenarios[0].stack) == tcp


def test_every_link_of_a_made_cluster_has_one_rate() -> None:
    made = load(FILE, made_of(12, 3, "40Gbps"))
    assert len(made.host_names) == 12
    assert made.fabric.leaves == 3
    assert {made.fabric.rate, *(nic.rate for nic in made.hosts[0].nics)} == {40e9}


def test_an_interval_that_is_not_the_shipped_one_is_stale() -> None:
    shipped = FORKS.interval(tcp=True)
    assert not Derived(FORKS, True, 20, 0, shipped).stale
    assert Derived(FORKS, True, 20, 0, Interval(shipped.low - 0.01, shipped.high)).stale
