"""Rates that links deliver, as bonds and routing see them."""

import numpy as np
import pytest

from sim.network.link_state import LinkState
from tests.support.cluster_files import cluster

LEAF_SPINE = {"template": "leaf-spine", "leaves": 2, "spines": 2, "rate": "8Mbps"}


@pytest.fixture
def links(tmp_path):
    return LinkState(cluster(tmp_path, fabric=LEAF_SPINE).fabric)


def shares(links, **of):
    share = np.ones(len(links.share))
    for link, value in of.items():
        share[int(link[1:])] = value
    return share


def test_bonds_know_a_slow_link_and_not_that_one_is_down(links):
    assert links.scale(shares(links, _0=0.5))
    assert not links.scale(shares(links, _0=0.0))
    assert links.share[0] == 0.0
    assert links.known[0] == 0.5
    assert links.scale(shares(links))


def test_a_repaired_fabric_is_in_its_first_state(links):
    first = links.key
    links.scale(shares(links, _3=0.25))
    links.avoid(np.array([1, 2]))
    assert links.key != first
    assert links.fabric is not links.whole
    links.scale(shares(links))
    links.avoid(np.empty(0, np.int64))
    assert links.key == first
    assert links.fabric is links.whole


def test_states_differ_in_what_is_avoided_and_in_what_is_slow(links):
    keys = {links.key}
    for share, avoided in (({"_0": 0.5}, [1]), ({"_1": 0.5}, [0]), ({}, [0, 1]), ({"_0": 0.5}, [])):
        links.scale(shares(links, **share))
        links.avoid(np.array(avoided, np.int64))
        keys.add(links.key)
    assert len(keys) == 5
