"""Path plans: a flow that strays, and loads of links."""

import pytest

from harp.routing.path_plan import PlanError
from harp.routing.planner import plan_paths
from harp.routing.templates import Endpoints, leaf_spine


def test_verify_names_the_flow_that_strays():
    fabric = leaf_spine(Endpoints.uniform(32), leaves=4, spines=8)
    plan = plan_paths(fabric, [0], [9])
    dead = int(plan.links[0, 1])
    with pytest.raises(PlanError, match="flow 0 from host-0/eth0 to host-9/eth0 takes leaf0->"):
        plan.verify(fabric.without([dead]))
