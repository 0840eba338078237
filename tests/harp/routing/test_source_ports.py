"""Source ports for wanted paths: the fabric's own hashing as oracle."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.routing.paths import equal_cost_paths, walked_paths
from harp.routing.source_ports import DYNAMIC_PORTS, FlowPorts, find_ports, turns, wanted_hops
from harp.routing.templates import Endpoints, SwitchHash, Wires, fat_tree, leaf_spine

LEAVES = leaf_spine(Endpoints.uniform(8), leaves=2, spines=4,
                    wires=Wires(switch_hash=SwitchHash("crc32", seed=3)))


@settings(deadline=None, max_examples=10)
@given(st.sampled_from(["crc16", "crc32", "linux"]), st.integers(0, 99), st.data())
def test_flows_by_the_ports_found_take_the_paths_that_were_wanted(function, seed, data):
    fabric = fat_tree(Endpoints.uniform(16), k=4,
                      wires=Wires(switch_hash=SwitchHash(function, seed=seed)))
    src, dst = np.arange(16), (np.arange(16) + data.draw(st.integers(1, 15))) % 16
    every = equal_cost_paths(fabric, src, dst, most=16)
    some = np.array([data.draw(st.integers(0, int((rows[:, 0] >= 0).sum()) - 1))
                     for rows in every])
    path = every[np.arange(16), some]
    port = find_ports(fabric, src, dst, path, FlowPorts.of(src, dst, 16, DYNAMIC_PORTS))
    found = port > 0
    assert found.any()
    walked = walked_paths(fabric, fabric.flows(src[found], dst[found], port[found]), None)
    wanted = path[found]
    assert [row[row >= 0].tolist() for row in walked] == [row[row >= 0].tolist() for row in wanted]


def test_ports_that_lead_elsewhere_are_none():
    src, dst = np.array([0]), np.array([7])
    ports = [50_000, 50_001]
    (taken,) = walked_paths(LEAVES, LEAVES.flows(0, 7, np.array([50_000])), None)
    (every,) = equal_cost_paths(LEAVES, src, dst, most=9)
    both = walked_paths(LEAVES, LEAVES.flows([0, 0], [7, 7], np.array(ports)), None).tolist()
    for path in every:
        (port,) = find_ports(LEAVES, src, dst, path[None], FlowPorts.of(src, dst, 8, ports))
        assert port == (ports[both.index(path.tolist())] if path.tolist() in both else 0)
    dead = LEAVES.without([taken[1]])
    assert not wanted_hops(dead, dst, taken[None]).possible.any()
    assert find_ports(dead, src, dst, taken[None], FlowPorts.of(src, dst, 8, ports)) == [0]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 4), max_size=12), st.integers(1, 9))
def test_flows_of_a_group_never_have_one_port(group, most):
    group = np.array(group, np.int64)
    ports = FlowPorts.of(group, group, 5, np.arange(1000, 1030), apart=group)
    drawn = ports.candidates(np.arange(most))
    assert [(group[:i] == g).sum() for i, g in enumerate(group)] == turns(group)[0].tolist()
    for number in set(group.tolist()):
        some = drawn[group == number]
        assert len({*some[some > 0].tolist()}) == (some > 0).sum()


@pytest.mark.parametrize(("ports", "sentence"), [
    ([[1000], [2000]], "2 lists of source ports for 3 endpoints"),
    ([[1000], [], [1]], "source ports of endpoint 1 must be some of 1 to 65535"),
    ([0, 1000], "source ports of endpoint 0 must be some of 1 to 65535"),
    ([65536], "source ports of endpoint 0 must be some of 1 to 65535")])
def test_ports_that_are_none_are_one_sentence(ports, sentence):
    with pytest.raises(ValueError, match=sentence):
        FlowPorts.of(np.array([0]), np.array([1]), 3, ports)
