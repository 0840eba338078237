"""Plans choose source ports that keep a flow's path and spread its answers."""

from __future__ import annotations

import numpy as np
import pytest

from harp.routing.ack_ports import spread_acks
from harp.routing.hashes import ROCE_PORT
from harp.routing.planner import plan_paths, replan
from harp.routing.source_ports import DYNAMIC_PORTS, FlowPorts, find_ports
from harp.routing.templates import Endpoints, fat_tree, leaf_spine

FABRICS = {"leaf-spine": leaf_spine(Endpoints.uniform(64), leaves=8, spines=8),
           "two leaves": leaf_spine(Endpoints.uniform(8), leaves=2, spines=4),
           "fat tree": fat_tree(Endpoints.uniform(128), k=8)}


def most_answers(fabric, src, dst, port):
    """Answers on the link between switches that has most of them."""
    _, links = fabric.route(fabric.flows(dst, src, ROCE_PORT, port))
    inner = (fabric.link_src < len(fabric.switches)) & (fabric.link_dst < len(fabric.switches))
    return np.bincount(links, minlength=inner.size)[inner].max()


@pytest.mark.parametrize("name", FABRICS)
def test_answers_meet_less_than_by_chance_and_data_goes_as_planned(name):
    fabric = FABRICS[name]
    src = np.arange(len(fabric.endpoints))
    dst = (src + src.size // 2) % src.size
    plan = plan_paths(fabric, src, dst)
    plan.verify(fabric)
    assert plan.max_load == plan.bound
    usable = FlowPorts.of(src, dst, src.size, DYNAMIC_PORTS)
    by_chance = find_ports(fabric, src, dst, plan.links, usable)
    chance = most_answers(fabric, src, dst, by_chance)
    assert most_answers(fabric, src, dst, plan.source_port) < chance


def test_a_permutation_both_ways_has_one_flow_and_its_answers_on_each_link():
    fabric = FABRICS["two leaves"]
    src = np.arange(8)
    plan = plan_paths(fabric, src, (src + 4) % 8)
    assert most_answers(fabric, src, (src + 4) % 8, plan.source_port) == 1


def test_flows_that_stay_where_they_are_keep_their_ports():
    fabric = FABRICS["leaf-spine"]
    src = np.arange(64)
    plan = plan_paths(fabric, src, (src + 32) % 64)
    again = replan(plan, fabric)
    assert (again.source_port == plan.source_port).all()


def test_answers_that_have_no_way_back_leave_the_ports_as_they_are():
    fabric = FABRICS["two leaves"]
    src, dst = np.arange(4), np.arange(4, 8)
    plan = plan_paths(fabric, src, dst)
    one_way = fabric.without(np.flatnonzero(fabric.link_dst == fabric.nodes["leaf0"]))
    usable = FlowPorts.of(src, dst, 8, DYNAMIC_PORTS)
    found = spread_acks(one_way, src, dst, plan.links, plan.source_port, np.arange(4), usable)
    assert (found == plan.source_port).all()
