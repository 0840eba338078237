"""Traffic of others on a fabric: what it leaves of the links' rates."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.routing.background_load import LEAST_SHARE, Background
from harp.routing.jobs import Ranks, Wanted, plan_job
from harp.routing.path_plan import PlanError
from harp.routing.templates import Endpoints, leaf_spine

FABRIC = leaf_spine(Endpoints.uniform(4, bps=10e9), leaves=2, spines=2)
RANKS = Ranks(np.arange(4), np.arange(4), np.ones(4, np.int64), ("a", "b", "c", "d"))
RATES = st.dictionaries(st.sampled_from(sorted(FABRIC.links_by_name)), st.floats(0, 50e9))


@settings(max_examples=20)
@given(RATES, RATES)
def test_what_is_left_is_the_rate_less_what_is_used_or_a_hundredth(one, other):
    both = Background.of_rates(FABRIC, one) + Background.of_rates(FABRIC, other)
    left = both.left(FABRIC).link_bps
    for name, number in FABRIC.links_by_name.items():
        for link in np.atleast_1d(number):
            bps = FABRIC.link_bps[link]
            used = one.get(name, 0.0) + other.get(name, 0.0)
            assert left[link] == pytest.approx(max(bps - used, LEAST_SHARE * bps))


def test_a_plan_takes_its_demand_from_each_link_of_its_flows():
    plan = plan_job(FABRIC, RANKS, Wanted([(0, 2), (0, 3)]))
    around = Background.of_plans(FABRIC, [plan, plan])
    numbers = FABRIC.links_by_name
    wanted = np.zeros(len(FABRIC.link_bps))
    for flow in plan.flows:
        for link in flow.links:
            wanted[numbers[link]] += 2 * 5e9  # two plans of two flows that share a NIC
    assert np.allclose(around.bps, wanted)
    up = int(FABRIC.endpoint_ports[0, 0])
    assert around.least_bps[up] == FABRIC.link_bps[up] / 5
    assert around.left(FABRIC).link_bps[up] == FABRIC.link_bps[up] / 5
    ports = {int(flow.source.partition(":")[2]) for flow in plan.flows}
    assert around.ports[0] == ports | {61000}
    assert around.ports[2] == {61000}


def test_a_link_or_a_plan_of_another_fabric_is_refused():
    with pytest.raises(KeyError, match="leaf0->spine9"):
        Background.of_rates(FABRIC, {"leaf0->spine9": 1e9})
    plan = plan_job(FABRIC, RANKS, Wanted([(0, 2)]))
    foreign = replace(plan, flows=tuple(replace(flow, links=("here->there",))
                                        for flow in plan.flows))
    with pytest.raises(PlanError, match="the fabric has no here->there: the plan was made for "
                                        "another fabric"):
        Background.of_plans(FABRIC, [foreign])
