"""ECMP, spray and overlay routing: networkx as oracle, and the laws that any route obeys."""

import doctest
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.routing import fabric as fabric_module
from harp.routing.fabric import UnreachableError
from harp.routing.templates import (
    Endpoints,
    SwitchHash,
    Wires,
    dual_tor,
    fat_tree,
    leaf_spine,
    single_switch,
)
from tests.support import ROOT
from tests.support.levels import draws
from tests.support.small_fabrics import paths, random_fabrics, switch_graph


def all_pairs(fabric, ports=4):
    """Flows of every ordered pair of endpoints, by several source ports."""
    count = len(fabric.endpoints)
    src, dst, port = (a.ravel() for a in np.indices((count, count, ports)))
    return fabric.flows(src, dst, 50000 + 7 * port)


def assert_route_is_shortest(fabric, flows, index, path):
    """The path is connected, leaves by a port of its NIC, ends at its goal, and is shortest."""
    switches = len(fabric.switches)
    src, dst = switches + int(flows.src[index]), switches + int(flows.dst[index])
    nodes = [int(fabric.link_src[path[0]])] + [int(fabric.link_dst[link]) for link in path]
    assert [int(fabric.link_src[link]) for link in path] == nodes[:-1]
    assert nodes[0] == src
    assert nodes[-1] == dst
    assert fabric.link_up[path].all()
    assert len(set(nodes)) == len(nodes)
    assert nodes[1:] in list(nx.all_shortest_paths(switch_graph(fabric, dst), nodes[1], dst))


def is_reachable(fabric, one, port):
    """Whether the port is up and networkx finds a way on from the switch that it leads to."""
    link = fabric.endpoint_ports[one.src[0], port]
    first, dst = int(fabric.link_dst[link]), len(fabric.switches) + int(one.dst[0])
    graph = switch_graph(fabric, dst)
    graph.add_nodes_from([first, dst])
    return bool(fabric.link_up[link]) and nx.has_path(graph, first, dst)


def test_every_path_is_one_of_networkx_shortest_paths(small):
    flows = all_pairs(small, ports=2)
    for index, path in enumerate(paths(small, flows)):
        if flows.src[index] == flows.dst[index]:
            assert path == []
        else:
            assert_route_is_shortest(small, flows, index, path)


@settings(max_examples=draws(60), deadline=None)
@given(random_fabrics(), st.data())
def test_routes_on_random_fabrics_with_failures(fabric, data):
    down = data.draw(st.lists(st.integers(0, len(fabric.link_src) - 1), max_size=4))
    degraded = fabric.without(down)
    flows = all_pairs(degraded, ports=1)
    flows = flows.take(flows.src != flows.dst)
    for index in range(len(flows.src)):
        one = flows.take(np.array([index]))
        for port in range(fabric.endpoint_ports.shape[1]):
            if is_reachable(degraded, one, port):
                assert_route_is_shortest(degraded, one, 0, paths(degraded, one, port)[0])
            else:
                with pytest.raises(UnreachableError):
                    degraded.route(one, port)
    assert fabric.link_up.all()


@settings(max_examples=40, deadline=None)
@given(random_fabrics())
def test_spray_conserves_every_flow_and_splits_evenly(fabric):
    flows = all_pairs(fabric, ports=1)
    flows = flows.take(flows.src != flows.dst)
    ptr, links, share = fabric.route_spray(flows)
    for index, (a, b) in enumerate(pairwise(ptr)):
        crossed = links[a:b]
        assert len(set(crossed)) == len(crossed)
        net = np.zeros(len(fabric.switches) + len(fabric.endpoints))
        np.add.at(net, fabric.link_src[crossed], -share[a:b])
        np.add.at(net, fabric.link_dst[crossed], share[a:b])
        expected = np.zeros_like(net)
        expected[len(fabric.switches) + flows.src[index]] = -1
        expected[len(fabric.switches) + flows.dst[index]] = 1
        np.testing.assert_allclose(net, expected, atol=1e-12)
        for switch in set(fabric.link_dst[crossed]) & set(range(len(fabric.switches))):
            out = share[a:b][fabric.link_src[crossed] == switch]
            assert np.ptp(out) < 1e-12
            assert len(out) == len(fabric.next_hops.at(switch, int(flows.dst[index])))


def test_spray_is_the_mean_of_ecmp_over_many_source_ports():
    fabric = fat_tree(Endpoints.uniform(16), k=4)
    count = 1 << 14
    _, links, share = fabric.route_spray(fabric.flows(0, 15))
    sprayed = np.bincount(links, share, len(fabric.link_src))
    _, routed = fabric.route(fabric.flows(0, 15, np.arange(count)))
    measured = np.bincount(routed, minlength=len(fabric.link_src)) / count
    np.testing.assert_allclose(measured, sprayed, atol=0.03)


@pytest.mark.parametrize("function", ["crc32", "toeplitz", "linux"])
def test_random_flows_split_nearly_evenly_over_every_group(function):
    wires = Wires(switch_hash=SwitchHash(function))
    fabric = fat_tree(Endpoints.uniform(128), k=8, wires=wires)
    rng = np.random.default_rng(7)
    count = 200_000
    src, dst = rng.integers(0, 128, (2, count))
    _, links = fabric.route(fabric.flows(src, dst, rng.integers(49152, 65536, count)))
    load = np.bincount(links, minlength=len(fabric.link_src))
    up = (fabric.link_src < 32) & (fabric.link_dst >= 32) & (fabric.link_dst < 80)
    per_leaf = load[up].reshape(32, 4) / load[up].reshape(32, 4).sum(axis=1, keepdims=True)
    assert np.abs(per_leaf - 0.25).max() < 0.03
    core = np.bincount(fabric.link_src[links], minlength=80)[64:80]
    assert core.min() > 0.9 * core.mean()


@pytest.mark.parametrize("function", ["crc32", "linux"])
def test_one_salt_everywhere_polarises_and_own_salts_do_not(function):
    def agg_ports(per_switch):
        wires = Wires(switch_hash=SwitchHash(function, per_switch=per_switch))
        fabric = fat_tree(Endpoints.uniform(128), k=8, wires=wires)
        ptr, links = fabric.route(fabric.flows(0, 127, np.arange(49152, 53248)))
        second_tier = links[ptr[:-1] + 2]
        return len(np.unique(second_tier))

    assert agg_ports(per_switch=False) == 4
    assert agg_ports(per_switch=True) == 16


def test_the_same_seed_gives_the_same_routes_and_another_seed_others():
    def links(seed):
        wires = Wires(switch_hash=SwitchHash(seed=seed))
        fabric = leaf_spine(Endpoints.uniform(32), leaves=4, spines=8, wires=wires)
        return fabric.route(fabric.flows(np.arange(16), 31, np.arange(60000, 60016)))[1]

    np.testing.assert_array_equal(links(3), links(3))
    assert (links(3) != links(4)).any()


def test_a_flow_keeps_its_path_whoever_else_is_routed():
    fabric = fat_tree(Endpoints.uniform(16), k=4)
    flows = all_pairs(fabric)
    together = paths(fabric, flows)
    for index in range(0, len(together), 37):
        assert paths(fabric, flows.take(np.array([index])))[0] == together[index]


def test_links_that_are_down_carry_nothing_and_numbers_stay():
    fabric = leaf_spine(Endpoints.uniform(8), leaves=2, spines=4)
    cable = fabric.links_between("leaf0", "spine1")
    degraded = fabric.without([*cable, *(cable ^ 1)])
    flows = fabric.flows(0, 7, np.arange(49152, 49652))
    before, after = (set(f.route(flows)[1]) for f in (fabric, degraded))
    assert before - after == {int(cable[0]), *fabric.links_between("spine1", "leaf1")}
    assert degraded.link_name(int(cable[0])) == "leaf0->spine1"
    assert not set(degraded.route_spray(flows)[1]) & set(cable)


def test_unreachable_endpoints_are_named():
    fabric = leaf_spine(Endpoints.uniform(4), leaves=2, spines=1)
    cut = fabric.without(fabric.links_between("spine0", "leaf1"))
    flows = fabric.flows([0, 0], [1, 3])
    with pytest.raises(UnreachableError, match="from host-0/eth0 to host-3/eth0"):
        cut.route(flows)
    with pytest.raises(UnreachableError, match="from host-0/eth0 to host-3/eth0"):
        cut.route_spray(flows)
    unplugged = fabric.without([0])
    with pytest.raises(UnreachableError, match="from host-0/eth0 to host-1/eth0"):
        unplugged.route(flows)
    with pytest.raises(UnreachableError, match="from host-0/eth0 to host-1/eth0"):
        unplugged.route_spray(flows)


def test_a_chosen_port_is_taken():
    fabric = dual_tor(Endpoints.uniform(8, ports=2), pairs=2, spines=3)
    flows = all_pairs(fabric)
    flows = flows.take(flows.src != flows.dst)
    for port in (0, 1):
        ptr, links = fabric.route(flows, port)
        np.testing.assert_array_equal(links[ptr[:-1]], fabric.endpoint_ports[flows.src, port])
        _, links, _ = fabric.route_spray(flows, port)
        assert not set(links) & set(fabric.endpoint_ports[:, 1 - port])


def test_a_dual_tor_nic_is_reached_over_both_tors():
    fabric = dual_tor(Endpoints.uniform(8, ports=2), pairs=2, spines=4)
    _, links = fabric.route(fabric.flows(0, 7, np.arange(49152, 50152)), port=0)
    assert set(fabric.endpoint_ports[7] ^ 1) <= set(links)
    broken = fabric.without([int(fabric.endpoint_ports[7, 0] ^ 1)])
    _, links = broken.route(fabric.flows(0, 7, np.arange(49152, 50152)))
    assert int(fabric.endpoint_ports[7, 1] ^ 1) in set(links)
    assert int(fabric.endpoint_ports[7, 0] ^ 1) not in set(links)


def test_switches_may_hash_differently():
    fabric = leaf_spine(Endpoints.uniform(8), leaves=2, spines=4)
    fabric.hash_function[0] = 1 - fabric.hash_function[0]
    assert sorted({len(path) for path in paths(fabric, all_pairs(fabric))}) == [0, 2, 4]


def test_no_flows_route_to_nothing():
    fabric = single_switch(Endpoints.uniform(2))
    none = fabric.flows([], [])
    assert fabric.route(none)[0].tolist() == [0]
    assert fabric.route_spray(none)[0].tolist() == [0]


def test_the_manuals_examples_run():
    manual = ROOT / "docs" / "inside" / "routing.md"
    assert doctest.testfile(str(manual), module_relative=False).failed == 0
    assert doctest.testmod(fabric_module).failed == 0
