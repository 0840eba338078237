"""Path plans: a flow that strays, and loads of links."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.routing.path_plan import PlanError, link_loads
from harp.routing.planner import plan_paths
from harp.routing.templates import Endpoints, leaf_spine


def test_verify_names_the_flow_that_strays():
    fabric = leaf_spine(Endpoints.uniform(32), leaves=4, spines=8)
    plan = plan_paths(fabric, [0], [9])
    dead = int(plan.links[0, 1])
    with pytest.raises(PlanError, match="flow 0 from host-0/eth0 to host-9/eth0 takes leaf0->"):
        plan.verify(fabric.without([dead]))


@given(st.lists(st.tuples(st.lists(st.integers(0, 4), max_size=3, unique=True),
                          st.sampled_from([1e9, 3e9])), max_size=8))
@settings(max_examples=20)
def test_a_load_is_the_demand_over_a_link_by_its_capacity(flows):
    fabric = leaf_spine(Endpoints.uniform(4), leaves=2, spines=2)
    links = np.array([path + [-1] * (3 - len(path)) for path, _ in flows], np.int64).reshape(-1, 3)
    found = link_loads(fabric, links, np.array([bps for _, bps in flows]))
    for link, capacity in enumerate(fabric.link_bps):
        total = sum(bps for path, bps in flows if link in path)
        assert found[link] == pytest.approx(total / capacity)
