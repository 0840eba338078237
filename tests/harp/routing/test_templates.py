"""The shapes that templates build: counts, degrees, oversubscription and refusals."""

import numpy as np
import pytest

from harp.routing.templates import (
    Cable,
    Endpoints,
    SwitchHash,
    Wires,
    clos3,
    dual_tor,
    explicit,
    fat_tree,
    leaf_spine,
    rail,
    single_switch,
)


def degrees(fabric):
    """Live links out of each switch."""
    return np.bincount(fabric.link_src, minlength=len(fabric.switches))[: len(fabric.switches)]


def attached(fabric, endpoint):
    """Names of the switches that an endpoint's ports lead to."""
    ports = fabric.endpoint_ports[endpoint]
    return [fabric.switches[fabric.link_dst[port]] for port in ports if port >= 0]


def crossed(fabric, src, dst):
    """Number of links on a route between two endpoints."""
    return len(fabric.route(fabric.flows(src, dst))[1])


FABRICS = [
    single_switch(Endpoints.uniform(3, nics=2)),
    leaf_spine(Endpoints.uniform(10), leaves=4, spines=2, links=2),
    rail(Endpoints.uniform(7, nics=4), hosts_per_leaf=2, spines=3),
    clos3(Endpoints.uniform(24), pods=3, leaves=2, aggs=3, cores=6, links=2),
    dual_tor(Endpoints.uniform(5, ports=2), pairs=2, spines=2),
]


@pytest.mark.parametrize("fabric", FABRICS)
def test_cables_are_pairs_of_directed_links(fabric):
    links = np.arange(len(fabric.link_src))
    np.testing.assert_array_equal(fabric.link_src[links ^ 1], fabric.link_dst)
    np.testing.assert_array_equal(fabric.link_bps[links ^ 1], fabric.link_bps)
    assert len(set(fabric.switches)) == len(fabric.switches)


@pytest.mark.parametrize("fabric", FABRICS)
def test_every_endpoint_reaches_every_other(fabric):
    count = len(fabric.endpoints)
    src, dst = (a.ravel() for a in np.indices((count, count)))
    ptr, _ = fabric.route(fabric.flows(src, dst))
    np.testing.assert_array_equal(np.diff(ptr) > 0, src != dst)


@pytest.mark.parametrize("fabric", FABRICS)
def test_ports_belong_to_their_endpoint(fabric):
    for endpoint, ports in enumerate(fabric.endpoint_ports):
        assert (fabric.link_src[ports] == len(fabric.switches) + endpoint).all()


def test_fat_tree_of_16_port_switches_carries_1024_hosts():
    fabric = fat_tree(Endpoints.uniform(1024), k=16)
    assert len(fabric.switches) == 128 + 128 + 64
    assert set(degrees(fabric)) == {16}
    assert crossed(fabric, 0, 7) == 2
    assert crossed(fabric, 0, 8) == 4
    assert crossed(fabric, 0, 1023) == 6


def test_clos3_for_16384_hosts():
    fabric = clos3(Endpoints.uniform(16384), pods=32, leaves=16, aggs=16, cores=256)
    assert len(fabric.switches) == 32 * 32 + 256
    assert set(degrees(fabric)[:512]) == {32 + 16}
    assert crossed(fabric, 0, 16383) == 6
    assert len(fabric.next_hops.at(fabric.nodes["pod0-agg3"], 16383)) == 16


def test_leaf_spine_two_to_one_oversubscription():
    wires = Wires(rate_bps=200e9, latency_s=2e-6)
    fabric = leaf_spine(Endpoints.uniform(64), leaves=4, spines=2, links=2, wires=wires)
    leaf = fabric.link_src == 0
    down = leaf & (fabric.link_dst >= len(fabric.switches))
    assert fabric.link_bps[down].sum() == 2 * fabric.link_bps[leaf & ~down].sum()
    assert set(fabric.link_latency_s) == {2e-6}
    assert len(fabric.links_between("leaf0", "spine1")) == 2


def test_hosts_spread_evenly_when_they_do_not_divide():
    fabric = leaf_spine(Endpoints.uniform(10), leaves=4, spines=1)
    sizes = np.unique([attached(fabric, e)[0] for e in range(10)], return_counts=True)[1]
    assert sorted(sizes) == [2, 2, 3, 3]


def test_rail_puts_nic_r_on_rail_r_of_its_group():
    fabric = rail(Endpoints.uniform(8, nics=8), hosts_per_leaf=4, spines=2)
    assert attached(fabric, 5 * 8 + 3) == ["group1-rail3"]
    assert crossed(fabric, 0 * 8 + 3, 3 * 8 + 3) == 2
    assert crossed(fabric, 0 * 8 + 3, 5 * 8 + 3) == 4


def test_dual_tor_gives_each_port_its_side():
    fabric = dual_tor(Endpoints.uniform(8, ports=2), pairs=2, spines=2)
    assert attached(fabric, 0) == ["tor0a", "tor0b"]
    assert attached(fabric, 7) == ["tor1a", "tor1b"]


def test_host_links_take_the_nics_rate():
    fabric = single_switch(Endpoints.uniform(2, ports=2, bps=25e9), wires=Wires(rate_bps=400e9))
    assert set(fabric.link_bps) == {25e9}
    assert attached(fabric, 0) == ["switch0", "switch0"]


def test_salts_differ_per_switch_or_are_all_zero():
    own = leaf_spine(Endpoints.uniform(8), leaves=4, spines=4)
    assert len(np.unique(own.hash_salt)) == 8
    wires = Wires(switch_hash=SwitchHash(per_switch=False))
    same = leaf_spine(Endpoints.uniform(8), leaves=4, spines=4, wires=wires)
    assert not same.hash_salt.any()


PAIR = Endpoints.uniform(2)
LINKED = [("host-0/eth0", 0, "a"), ("host-1/eth0", 0, "b")]
CABLE = Cable("a", "b", 40e9, 3e-6, count=2)


def test_explicit_fabric_keeps_rates_and_counts():
    fabric = explicit(PAIR, devices=["a", "b"], cables=[CABLE], host_links=LINKED)
    between = fabric.links_between("a", "b")
    assert len(between) == 2
    assert set(fabric.link_bps[between]) == {40e9}
    assert set(fabric.link_latency_s[between]) == {3e-6}
    assert crossed(fabric, 0, 1) == 3


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda e: leaf_spine(e(2), leaves=3, spines=1), "3 leaves for 2 hosts: give at most 2"),
        (lambda e: leaf_spine(e(2), leaves=2, spines=0), "at least 1 spines, not 0"),
        (lambda e: leaf_spine(e(2), leaves=2, spines=1, links=-1), "at least 1 links, not -1"),
        (lambda e: rail(e(2), hosts_per_leaf=0, spines=1), "at least 1 hosts per leaf, not 0"),
        (lambda e: clos3(e(8), pods=2, leaves=2, aggs=2, cores=3), "3 cores do not divide by 2"),
        (lambda e: clos3(e(3), pods=2, leaves=2, aggs=1, cores=1), "4 leaves over all pods for 3"),
        (lambda e: fat_tree(e(17), k=4), "k=4 carries 16 host ports, not 17"),
        (lambda e: fat_tree(e(8), k=3), "even number of ports"),
        (lambda e: dual_tor(e(4), pairs=2, spines=1), "host-0/eth0 has 1"),
        (lambda e: dual_tor(e(1, ports=2), pairs=2, spines=1), "2 pairs of ToRs for 1 hosts"),
        (
            lambda e: single_switch(e(2), wires=Wires(switch_hash=SwitchHash("md5"))),
            "unknown hash function 'md5'",
        ),
    ],
)
def test_parameters_that_do_not_fit_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build(Endpoints.uniform)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"devices": ["a", "b", "a"]}, "device a is listed twice"),
        ({"cables": [Cable("a", "leaf", 1e9, 0.0)]}, "there is no device leaf"),
        (
            {"devices": ["a", "leaf0"], "host_links": [LINKED[0], ("host-1/eth0", 0, "leaf")]},
            "no device leaf; nearest is leaf0",
        ),
        ({"host_links": [("host-0/eth1", 0, "a")]}, "no NIC host-0/eth1; nearest is host-0/eth0"),
        ({"host_links": [("host-0/eth0", 1, "a")]}, "has 1 ports, there is no port 1"),
        ({"host_links": [LINKED[0], LINKED[0]]}, "port 0 of host-0/eth0 has two cables"),
        ({"host_links": LINKED[:1]}, "port 0 of host-1/eth0 has no cable"),
    ],
)
def test_explicit_lists_that_do_not_fit_are_refused(parts, message):
    whole = {"devices": ["a", "b"], "cables": [], "host_links": LINKED} | parts
    with pytest.raises(ValueError, match=message):
        explicit(PAIR, **whole)
