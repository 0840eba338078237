"""Flow against packet: the cases of ``sim.validate fidelities``."""

from __future__ import annotations

import numpy as np
import pytest

from sim.cluster.cluster import Cluster
from sim.schema import load
from sim.validation.fidelities import CASES, FILE, WORST_TARGET, Compared, compare, write_compared

QUICK = ("incast of 15, 4 MiB each", "neighbours under one leaf, 16 MiB",
         "permutation, oversubscribed 4:1", "ring, 1 MiB", "ring, 16 MiB",
         "ring, one link at a quarter, 16 MiB",
         "ring, host cap of 10 Gb/s, 16 MiB",
         "ring, dual port, dynamic, 32 MiB",
         "ring, flow cap of 5 Gb/s, 4 sockets, 16 MiB", "ring, 250,000 packets/s, 16 MiB",
         "kernel TCP: incast of 8, 4 MiB each", "kernel TCP: ring, 1 MiB",
         "kernel TCP: ring, 16 MiB", "kernel TCP: all-to-all, 16 MiB")


def case(name):
    (found,) = [case for case in CASES if case.name == name]
    return found


def test_there_are_enough_cases_with_names_of_their_own():
    assert len({case.name for case in CASES}) == len(CASES) >= 24


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_the_clusters_are_sound(name):
    cluster = Cluster(load(FILE, case(name).changes))
    plan = case(name).make(cluster.gpus, 4)
    assert all(np.all(phase.src != phase.dst) for phase in plan.phases())


@pytest.mark.parametrize("name", QUICK)
def test_flow_and_packet_agree(name):
    assert abs(compare(case(name)).error) < WORST_TARGET


@pytest.mark.parametrize("name", ["random permutation, sprayed, 16 MiB", "tree, 32 MiB",
                                  "kernel TCP: tree, 32 MiB", "halving-doubling, 16 MiB",
                                  "halving-doubling, oversubscribed, 16 MiB",
                                  "2D over hosts of 4, 4 MiB",
                                  "hierarchical all-to-all, 8 MiB"])
def test_an_error_goes_where_its_reason_is_taken_away(name):
    row = compare(case(name))
    assert row.without is not None
    assert abs(row.without) < 0.5 * abs(row.error)


def test_patterns_give_each_rank_its_own_messages():
    pattern = case("incast of 4, 4 MiB each").make(16, 1)
    (stage,) = pattern.stages
    assert [len(stage.sends(rank)) for rank in range(6)] == [0, 1, 1, 1, 1, 0]
    assert [len(stage.receives(rank)) for rank in range(2)] == [4, 0]


def test_the_page_shows_every_row_and_its_plot(tmp_path):
    write_compared([Compared(each, 1.0, 1.1) for each in CASES], tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert all(f"| {each.name} | 1,000,000 us | 1,100,000 us | -9 % |" in text for each in CASES)
    assert "(page.png)" in text
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
