"""Plans of real ranks: their file, and what a rank reads from it."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.collectives.tuning import Communicator, Row, Tuning
from harp.routing.deployment import SETTINGS, Deployment, Flow, Rank, split_address
from harp.routing.path_plan import PlanError

ADDRESSES = st.builds("10.0.{}.{}:{}".format, st.integers(0, 255), st.integers(0, 255),
                      st.integers(1, 65535))
LINKS = st.lists(st.sampled_from(["a->b", "b->c#2", "c->d"]), max_size=3).map(tuple)
LOADS = st.floats(0, 9)


@st.composite
def deployments(draw):
    count = draw(st.integers(1, 4))
    ranks = [Rank(rank, draw(st.sampled_from(["h-0", "h-1"])),
                  tuple(draw(st.lists(ADDRESSES, min_size=1, max_size=2))),
                  tuple(draw(st.lists(st.integers(1, 400_000), max_size=2))))
             for rank in range(count)]
    known = st.integers(0, count - 1)
    flows = draw(st.lists(st.builds(Flow, known, known, ADDRESSES, ADDRESSES, LINKS), max_size=5))
    table = Tuning((Communicator(8, 2, (Row("AllReduce", 0, 99, "Ring", "LL"),)),))
    return Deployment(
        "0123456789abcdef", draw(st.dictionaries(st.sampled_from(SETTINGS), st.just("2"))),
        draw(LOADS), draw(LOADS), draw(LOADS), draw(st.integers(0, 9)), tuple(ranks), tuple(flows),
        draw(st.sampled_from([None, table])), draw(LINKS), draw(st.sampled_from(["udp", "tcp"])))


@settings(max_examples=25, deadline=None)
@given(deployments())
def test_a_plan_reads_back(plan):
    assert Deployment.from_json(plan.to_json()) == plan


PLAN = Deployment("0" * 16, {"HARP_PATHS": "1"}, 1.0, 1.0, 2.0, 0,
                  (Rank(0, "h-1", ("10.0.0.1:61000",)), Rank(1, "h-1", ("10.0.0.1:61001",)),
                   Rank(2, "h-0", ("10.0.0.2:61000",))),
                  (Flow(0, 2, "10.0.0.1:61256", "10.0.0.2:61000", ()),
                   Flow(2, 1, "10.0.0.2:61256", "10.0.0.1:61001", ()),
                   Flow(0, 2, "10.0.0.1:61258", "10.0.0.2:61000", ())))


def test_a_rank_finds_its_own_flows_in_their_order():
    assert PLAN.flows_of(0) == [("10.0.0.1:61256", "10.0.0.2:61000"),
                                ("10.0.0.1:61258", "10.0.0.2:61000")]
    assert PLAN.flows_of(1) == []


@pytest.mark.parametrize(("launcher", "lines"), [
    ("openmpi", ["h-1 slots=2", "h-0 slots=1"]), ("mpich", ["h-1:2", "h-0:1"]),
    ("torchrun", ["h-1 --node-rank=0 --nproc-per-node=2", "h-0 --node-rank=1 --nproc-per-node=1"])])
def test_a_host_file_has_the_hosts_in_the_order_of_their_ranks(launcher, lines):
    assert PLAN.hostfile(launcher).splitlines() == lines


@pytest.mark.parametrize(("change", "sentence"), [
    ({"format": "harp-plan-0"}, "its format is 'harp-plan-0' and this HARP reads 'harp-plan-1': "
                                "make it anew with harp plan"),
    ({"settings": {"LD_PRELOAD": "x"}}, "it sets 'LD_PRELOAD': allowed are HARP_PORT, HARP_PATHS"),
    ({"tuning": {"format": "x"}}, "its tuning table is invalid: its format is 'x'"),
    ({"protocol": "tpc"}, r"protocol is \"tpc\": udp, tcp \(did you mean tcp\?\) is possible"),
    ({"ranks": []}, r"flows\[0\] is of rank 0, which is not there"),
    ({"bound": -1}, "bound is -1: a number of at least 0 is possible")])
def test_a_file_that_is_no_plan_is_one_sentence(change, sentence):
    with pytest.raises(PlanError, match=sentence) as error:
        Deployment.from_json(json.dumps(json.loads(PLAN.to_json()) | change))
    assert "\n" not in str(error.value)


def test_a_rank_is_there_once():
    twice = replace(PLAN, ranks=(*PLAN.ranks, PLAN.ranks[0]))
    with pytest.raises(PlanError, match="rank 0 is there 2 times"):
        Deployment.from_json(twice.to_json())


def test_an_address_is_taken_apart_at_its_last_colon():
    assert split_address("10.0.0.1:7000") == ("10.0.0.1", 7000)
    assert split_address("[fd00::1]:7000") == ("[fd00::1]", 7000)
