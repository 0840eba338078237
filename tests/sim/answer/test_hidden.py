"""Unknown properties of NCCL's connections: when they count, and how draws choose them."""

from __future__ import annotations

from collections import Counter

import pytest

from sim.answer.hidden import BOUND, Hidden, every_hidden, hidden_at, uncover, unknown_driver
from sim.answer.scenario import run_scenario
from sim.answer.uncertainty import DRAWS, causes, choose_draws
from tests.support.cluster_files import cluster

CLOUD = {"vpc": {"vnics": 1}, "scenario": {"stack": "kernel-tcp", "channels": 2}}
FAST = {"rate": "100Gbps"}


def made(folder, nic=None, gpus=2, **more):
    given = CLOUD | {"scenario": CLOUD["scenario"] | more.pop("scenario", {})} | more
    return cluster(folder, gpus=gpus, nic=nic, **given)


@pytest.mark.parametrize(("nic", "more"), [
    ({"driver": "other"}, {}), ({"driver": "ena"}, {}), (None, {"scenario": {"sockets": 1}}),
    (None, {"scenario": {"helpers": 0}}), (None, {"scenario": {"stack": "rdma"}}),
    (None, {"scenario": {"stack": "taco-tcp"}}), (None, {"vpc": None})])
def test_known_properties_are_not_drawn(tmp_path, nic, more):
    built = made(tmp_path, nic, **more)
    assert not unknown_driver(built.topology)
    assert every_hidden(built.topology) == []
    assert {draw.hidden for draw in choose_draws(built.topology, 8)} == {Hidden()}


def test_an_unknown_driver_is_drawn_evenly(tmp_path):
    drawn = choose_draws(made(tmp_path).topology, DRAWS)
    assert Counter(draw.hidden.driver for draw in drawn) == {"ena": 8, "gve": 8, "other": 8}
    assert not any(draw.hidden.bound for draw in drawn)


def test_helpers_of_two_processes_may_share_a_core(tmp_path):
    """Open MPI binds up to two processes to a core each."""
    two = made(tmp_path, {"driver": "gve"}, gpus=1)
    assert every_hidden(two.topology) == [Hidden(), Hidden(bound=True)]
    bound = sum(draw.hidden.bound for draw in choose_draws(two.topology, 3 * DRAWS))
    assert bound == pytest.approx(3 * DRAWS * BOUND, abs=1)
    without = made(tmp_path, {"driver": "other"}, gpus=1)
    assert every_hidden(without.topology) == []


@pytest.mark.parametrize("driver", ["ena", "gve", "other"])
def test_a_draw_answers_as_a_file_that_says_so(tmp_path, driver):
    open_, known = made(tmp_path, FAST), made(tmp_path, FAST | {"driver": driver})
    found = uncover(open_, Hidden(driver))
    for built in (found, known):
        assert {nic.driver for group in built.topology.hosts for nic in group.nics} == {driver}
    rates = [run_scenario(built, built.topology.scenarios[0], 4)[0].images_per_s
             for built in (found, known)]
    assert rates[0] == rates[1]


def test_bound_helpers_move_what_the_processs_own_thread_does(tmp_path):
    built = made(tmp_path, FAST | {"driver": "gve"}, gpus=1)
    alone = made(tmp_path, FAST | {"driver": "gve"}, gpus=1, scenario={"helpers": 0, "sockets": 4})
    found = uncover(built, Hidden(bound=True))
    rates = [run_scenario(each, each.topology.scenarios[0], 2)[0].images_per_s
             for each in (found, alone, built)]
    assert rates[0] == rates[1]
    assert rates[0] < 0.9 * rates[2]


def test_the_answer_itself_takes_the_file_as_it_is(tmp_path):
    built = made(tmp_path)
    assert uncover(built, Hidden()) is built
    assert hidden_at(made(tmp_path, {"driver": "ena"}).topology, []) == Hidden()


def test_connections_are_a_cause_of_the_spread(tmp_path):
    built = made(tmp_path, FAST)
    found = causes(built, [(built.topology.scenarios[0], 4)], workers=1)[0][0]
    names = [cause.parameter for cause in found]
    assert "helpers and sockets" in names
    cause = found[names.index("helpers and sockets")]
    rates = [run_scenario(uncover(built, hidden), built.topology.scenarios[0], 4)[0].images_per_s
             for hidden in every_hidden(built.topology)]
    assert (cause.at_low, cause.at_high) == pytest.approx((min(rates), max(rates)))
