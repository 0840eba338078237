"""Pace of edges in the laboratory, by hand from a cluster's file."""

from __future__ import annotations

import pytest

from sim.network.lab.edges import EdgePaces
from sim.network.transport import Style, Transport
from sim.schema.parameters import load_stack
from tests.support.cluster_files import ALPHA_S, RATE_BPS, cluster

SCALE = 0.01


def paces_of(built, *edges):
    transport = Transport(built, load_stack("ideal", built.topology.stacks), Style())
    return EdgePaces(transport, SCALE).of(edges)


def test_an_edge_between_hosts_has_its_links_and_the_hosts_resources(tmp_path):
    """Over two links; the lab is slower by its scale."""
    built = cluster(tmp_path, hosts=2, host={"pcie": {"rate": "32GB/s", "latency": "0s"}})
    pace = paces_of(built, (0, 0, 1))[0, 0, 1]
    byte_s = 8 / RATE_BPS / SCALE
    assert pace.line_s == pytest.approx(byte_s)
    assert pace.links_s == pytest.approx(2 * byte_s)
    assert pace.latency_s == pytest.approx(ALPHA_S / SCALE)
    assert pace.message_s == 0
    for uses in (pace.out, pace.into):
        assert pytest.approx(max(seconds for _, seconds in uses)) == 1 / (32e9 * SCALE)
    assert {resource for resource, _ in pace.out}.isdisjoint(
        resource for resource, _ in pace.into)


def test_an_edge_inside_a_host_has_no_link_and_no_far_end(tmp_path):
    pace = paces_of(cluster(tmp_path, hosts=2, gpus=2), (0, 0, 1))[0, 0, 1]
    assert (pace.line_s, pace.links_s, pace.into) == (0.0, 0.0, ())
    assert max(seconds for _, seconds in pace.out) == pytest.approx(1 / (100e9 * SCALE))


def test_edges_that_meet_in_a_resource_name_the_same_one(tmp_path):
    """Edges out of one GPU do, and one into it does not."""
    made = paces_of(cluster(tmp_path, hosts=3), (0, 0, 1), (0, 0, 2), (0, 2, 0))
    first, second, back = (dict(pace.out).keys() for pace in made.values())
    assert first == second
    assert first.isdisjoint(back)
    assert paces_of(cluster(tmp_path)) == {}
