"""Effects that flow leaves out: a rule finds them, and packet's answer lies in their interval."""

from __future__ import annotations

from itertools import product

import pytest

from sim.cluster.cluster import Cluster
from sim.network.corrections import EXCHANGES, FORKS, SPRAY, Interval
from sim.schema import load
from sim.validation.correction_runs import CAUSES, SPRAYED, made_of, permutation
from sim.validation.fidelities import CASES, FILE, MIB, Case, collective, compare, pattern
from tests.support.levels import long
from tests.support.sim_runs import run_all

TREES = [(24, 4, "25Gbps", 4, False), (9, 3, "50Gbps", 16, False), (14, 2, "25Gbps", 16, False),
         (9, 3, "25Gbps", 4, True), (24, 4, "50Gbps", 4, True), (14, 2, "50Gbps", 4, True)]
SPRAYS = [(24, 4, "25Gbps", 8, 7, False), (10, 5, "50Gbps", 32, 8, False),
          (24, 4, "25Gbps", 8, 8, True), (10, 5, "25Gbps", 8, 7, True)]
EXCHANGED = [
    ("halving-doubling", 16, 2, "50Gbps", 8, False), ("alltoall", 12, 3, "25Gbps", 12, False),
    ("alltoall", 24, 4, "50Gbps", 16, False), ("halving-doubling", 8, 4, "50Gbps", 16, False),
    ("alltoall", 12, 3, "50Gbps", 8, True), ("halving-doubling", 16, 2, "50Gbps", 8, True)]


@pytest.mark.parametrize("plan", ["tree", "broadcast"])
@pytest.mark.parametrize(("hosts", "leaves", "rate", "size", "tcp"), TREES)
def test_trees_that_no_interval_is_made_of_lie_within(plan, hosts, leaves, rate, size, tcp):
    row = compare(Case("held out", collective(plan, size * MIB),
                       made_of(hosts, leaves, rate, tcp=tcp)))
    assert row.corrections == (FORKS,)
    assert row.corrected, row


@pytest.mark.parametrize(("hosts", "leaves", "rate", "size", "seed", "tcp"), SPRAYS)
def test_sprays_that_no_interval_is_made_of_lie_within(hosts, leaves, rate, size, seed, tcp):
    far = permutation(hosts, leaves, seed)
    row = compare(Case("held out", pattern(range(hosts), far, size * MIB),
                       (*made_of(hosts, leaves, rate, tcp=tcp), *SPRAYED)))
    assert row.corrections == (SPRAY,)
    assert row.corrected, row


@pytest.mark.parametrize(("plan", "hosts", "leaves", "rate", "size", "tcp"), EXCHANGED)
def test_exchanges_that_no_interval_is_made_of_lie_within(plan, hosts, leaves, rate, size, tcp):
    row = compare(Case("held out", collective(plan, size * MIB),
                       made_of(hosts, leaves, rate, tcp=tcp)))
    assert row.corrections == (EXCHANGES,)
    assert row.corrected, row


def test_a_timeout_of_kernel_tcp_is_noted_beside_the_interval():
    row = compare(Case("timeout", collective("hierarchical-alltoall", 24 * MIB),
                       (*made_of(32, 4, "40Gbps", tcp=True), "hosts[0].gpus.count=2")))
    assert row.timed_out
    assert not row.corrected
    assert "TCP waits another 0.2 s" in EXCHANGES.sentence(tcp=True)
    assert "TCP" not in EXCHANGES.sentence(tcp=False)


@long
def test_nothing_is_judged_by_what_its_interval_is_made_of():
    """Of the cases that are judged no one has the same cluster, plan and size."""
    made = {(case.changes, *case.name.split(",")[-1:]) for tcp, (_, cases) in product(
        (False, True), CAUSES) for case in cases(tcp=tcp)}
    judged = {(case.changes, *case.name.split(",")[-1:]) for case in CASES}
    assert not made & judged
    held_out = {(hosts, rate, size) for hosts, _, rate, size, *_ in (
        *TREES, *SPRAYS, *(held[1:] for held in EXCHANGED))}
    assert not any(f"of {hosts}, {rate}, {size} MiB" in case.name for hosts, rate, size in held_out
                   for tcp in (False, True) for _, cases in CAUSES
                   for case in cases(tcp=tcp))


@pytest.mark.parametrize("name", ["ring, 16 MiB", "2D over hosts of 4, 4 MiB",
                                  "permutation across leaves, 16 MiB"])
def test_other_plans_have_no_correction(name):
    (case,) = [case for case in CASES if case.name == name]
    assert compare(case._replace(without=())).corrections == ()


def test_a_tree_of_two_hosts_neither_forks_nor_joins():
    row = compare(Case("two", collective("tree", 4 * MIB), made_of(2, 2, "25Gbps")))
    assert row.corrections == ()


def answer(*changes: str) -> str:
    cluster = Cluster(load(FILE, changes))
    return " ".join(note for row in run_all(cluster, cluster.topology.scenarios)
                    for note in row.notes)


def test_the_answer_names_its_corrections():
    notes = answer("scenarios[0].allreduce=tree", "scenarios[0].routing=spray")
    for correction in (FORKS, SPRAY):
        assert correction.sentence(tcp=False) in notes
    assert "forks" not in answer("scenarios[0].allreduce=ring")
    assert FORKS.sentence(tcp=True) in answer("scenarios[0].allreduce=tree",
                                              "scenarios[0].stack=kernel-tcp")


def test_ends_without_a_model_at_packet_have_no_correction():
    assert "forks" not in answer("scenarios[0].allreduce=tree", "scenarios[0].stack=rdma")


def test_an_interval_reads_as_per_cents():
    assert Interval(-0.08, 0.45).in_words() == "-8 % to +45 %"
