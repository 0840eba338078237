"""Bonds: Linux's hashing formulas, their collisions, and dynamic aggregation."""

from ipaddress import IPv4Address
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.routing import bond, hashes
from harp.routing.fabric import UnreachableError
from harp.routing.templates import Endpoints, dual_tor, single_switch

WORD = st.integers(0, 2**32 - 1)
PORT = st.integers(0, 2**16 - 1)


def swap(value, size):
    return int.from_bytes(value.to_bytes(size, "big"), "little")


def fold(value):
    value ^= value >> 16
    return value ^ value >> 8


def test_layer2_3_gives_the_kernels_own_example():
    # From the message of Linux commit 49aefd131739: two gateways, 192.168.122.30 to .1.
    tuples = hashes.five_tuples(
        int(IPv4Address("192.168.122.30")), int(IPv4Address("192.168.122.1")), 1
    )
    mac_xor = [0xA0 ^ 0xE3, 0xA1 ^ 0xE3]
    assert bond.layer2_3(tuples, mac_xor).tolist() == [522133332, 522133333]


@settings(deadline=None)
@given(WORD, WORD, PORT, PORT)
def test_formulas_as_the_bonding_driver_documents_them(src, dst, src_port, dst_port):
    tuples = hashes.five_tuples(src, dst, src_port, dst_port)
    addresses = swap(src, 4) ^ swap(dst, 4)
    ports = swap(src_port, 2) | swap(dst_port, 2) << 16
    assert bond.layer2_3(tuples)[0] == fold(addresses ^ swap(0x0800, 2))
    assert bond.layer3_4(tuples)[0] == fold(addresses ^ ports) >> 1


@pytest.fixture(params=["dual-tor", "single-switch"])
def bonded(request):
    endpoints = Endpoints.uniform(8, ports=2, bps=25e9)
    if request.param == "dual-tor":
        return dual_tor(endpoints, pairs=2, spines=4)
    return single_switch(endpoints)


@settings(deadline=None)
@given(src=st.integers(0, 7), dst=st.integers(0, 7))
def test_layer2_3_puts_all_flows_of_two_hosts_on_one_port(src, dst):
    fabric = single_switch(Endpoints.uniform(8, ports=2))
    flows = fabric.flows(src, dst, np.arange(49152, 65536))
    assert len(np.unique(bond.choose(fabric, flows, "lacp-2+3"))) == 1


def test_layer3_4_spreads_flows_but_not_neighbouring_source_ports(bonded):
    ports = np.arange(49152, 65536)
    chosen = bond.choose(bonded, bonded.flows(0, 7, ports), "lacp-3+4")
    assert 0.45 < chosen.mean() < 0.55
    np.testing.assert_array_equal(chosen[0::2], chosen[1::2])


@pytest.mark.parametrize("policy", ["lacp-2+3", "lacp-3+4"])
def test_the_known_bad_case_has_two_flows_on_one_port(bonded, policy):
    pair = bond.colliding_pair(bonded, 0, 7, policy)
    assert len(np.unique(pair.tuples.src_port)) == 2
    ptr, links = bonded.route(pair, bond.choose(bonded, pair, policy))
    first = links[ptr[:-1]]
    assert first[0] == first[1]
    assert bonded.link_bps[np.unique(first)].sum() == 25e9


def test_none_uses_the_first_port(bonded):
    assert not bond.choose(bonded, bonded.flows(0, 7, np.arange(100)), "none").any()


def test_a_bond_hashes_over_the_ports_that_are_up(bonded):
    cut = bonded.without([bonded.endpoint_ports[0, 0]])
    flows = cut.flows(0, 7, np.arange(49152, 49252))
    assert set(bond.choose(cut, flows, "lacp-3+4")) == {1}
    with pytest.raises(UnreachableError, match="host-0/eth0 to host-7/eth0"):
        cut.route(flows, bond.choose(cut, flows, "none"))


def test_an_unknown_policy_is_refused(bonded):
    with pytest.raises(ValueError, match="unknown bond policy 'rr'; there are none, lacp-2"):
        bond.choose(bonded, bonded.flows(0, 1), "rr")


def test_split_uses_both_ports_at_both_ends(bonded):
    flows = bonded.flows(np.arange(8), np.roll(np.arange(8), 3))
    parts = bond.split(bonded, flows)
    np.testing.assert_allclose(np.bincount(parts.parent, parts.weight), 1.0)
    ptr, links = bonded.route(parts.flows, parts.port)
    ends = np.concatenate([links[ptr[:-1]], links[ptr[1:] - 1]])
    assert len(np.unique(ends)) == len(ends) == 4 * 8
    assert all(b - a >= 2 for a, b in pairwise(ptr))


def test_split_follows_weights_and_leaves_dead_ports_out(bonded):
    weights = np.tile([3.0, 1.0], (8, 1))
    parts = bond.split(bonded, bonded.flows(0, 7), weights)
    assert parts.weight.tolist() == [0.75, 0.25]
    cut = bonded.without([bonded.endpoint_ports[0, 0]])
    parts = bond.split(cut, cut.flows(0, 7), weights)
    assert parts.port.tolist() == [1]
    assert parts.weight.tolist() == [1.0]


def test_split_to_a_nic_with_one_port_left_arrives_there(bonded):
    cut = bonded.without([bonded.endpoint_ports[7, 1], bonded.endpoint_ports[7, 1] ^ 1])
    parts = bond.split(cut, cut.flows(0, 7))
    ptr, links = cut.route(parts.flows, parts.port)
    assert set(links[ptr[1:] - 1]) == {bonded.endpoint_ports[7, 0] ^ 1}


@settings(deadline=None)
@given(
    st.lists(st.floats(1e9, 400e9), min_size=2, max_size=4),
    st.integers(0, 2**32 - 1),
)
def test_weights_converge_to_the_rates_that_ports_deliver(port_bps, seed):
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(len(port_bps)))
    for _ in range(20):
        noise = rng.uniform(0.998, 1.002, len(port_bps))
        weights = bond.update_weights(weights, port_bps * noise)
    assert bond.aggregate_bps(weights, port_bps) >= 0.99 * sum(port_bps)
    np.testing.assert_allclose(weights, np.array(port_bps) / sum(port_bps), rtol=0.01)


def test_weights_follow_a_port_that_degrades_and_recovers():
    weights = np.array([0.5, 0.5])
    for port_bps in ([25e9, 25e9], [25e9, 2.5e9], [25e9, 0.0], [25e9, 25e9]):
        for _ in range(20):
            weights = bond.update_weights(weights, port_bps)
        live = [rate for rate in port_bps if rate]
        if len(live) == 2:
            assert bond.aggregate_bps(weights, port_bps) >= 0.99 * sum(port_bps)
        else:
            assert 0 < weights[1] < 0.002


def test_weights_stay_when_nothing_is_delivered():
    np.testing.assert_allclose(bond.update_weights([0.3, 0.7], [0.0, 0.0]), [0.3, 0.7])


def test_aggregate_of_equal_weights_runs_at_the_pace_of_the_slower_port():
    assert bond.aggregate_bps([0.5, 0.5], [25e9, 10e9]) == pytest.approx(20e9)
    assert bond.aggregate_bps([1.0, 0.0], [25e9, 10e9]) == pytest.approx(25e9)
