"""Placement of ranks: every GPU once, hosts of a ToR together, rings on their rails."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.cluster.placement import choose_gpus, common_group, place
from tests.support.cluster_files import cluster, topology
from tests.support.levels import draws

RAILS = {"template": "rail", "hosts_per_leaf": 4, "spines": 2}


def crossings(made, ring):
    """Edges between hosts, and how many of them change the NIC index."""
    ahead = np.roll(ring, -1)
    leaves = made.host[ring] != made.host[ahead]
    nic = made.fabric.endpoint_nic[made.endpoint]
    return int(leaves.sum()), int((nic[ring] != nic[ahead])[leaves].sum())


@given(shape=st.tuples(st.integers(1, 9), st.sampled_from([1, 2, 4, 8]),
                       st.sampled_from([1, 2, 8])),
       channels=st.integers(1, 9), affinity=st.booleans())
@settings(max_examples=draws(60), deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_every_channel_has_every_gpu_once(tmp_path, shape, channels, affinity):
    hosts, gpus, nics = shape
    made = cluster(tmp_path, hosts=hosts, gpus=gpus, nic={"count": nics})
    chosen = choose_gpus(made, range(hosts), hosts * gpus, affinity=affinity)
    placed = place(made, chosen, channels, affinity=affinity)
    for rings in (placed.of("ring"), placed.of("tree")):
        assert len(rings) == channels
        for ring in rings:
            assert np.array_equal(np.sort(ring), np.arange(made.gpus))
            assert crossings(made, ring)[0] == (hosts if hosts > 1 else 0)
    for ranks in placed.of("2d"):
        assert np.array_equal(made.host[ranks].reshape(hosts, gpus),
                              np.repeat(made.host[ranks[::gpus]], gpus).reshape(hosts, gpus))


def test_some_gpus_of_the_first_host_or_whole_hosts(tmp_path):
    made = cluster(tmp_path, hosts=3, gpus=4)
    assert choose_gpus(made, range(3), 3, affinity=True).tolist() == [0, 1, 2]
    assert choose_gpus(made, range(3), 8, affinity=True).tolist() == list(range(8))
    assert choose_gpus(made, [2, 1], 8, affinity=False).tolist() == [8, 9, 10, 11, 4, 5, 6, 7]


def test_affinity_enters_each_leaf_once(tmp_path):
    made = cluster(tmp_path, hosts=8, fabric={"template": "leaf-spine", "leaves": 4, "spines": 2})
    mixed = [0, 2, 4, 6, 1, 3, 5, 7]
    leaf = made.fabric.link_dst[made.fabric.endpoint_ports[:, 0]]

    def changes(affinity):
        ring = choose_gpus(made, mixed, 8, affinity=affinity)
        return int((leaf[ring] != leaf[np.roll(ring, -1)]).sum())

    assert changes(True) == 4
    assert changes(False) == 8


@pytest.mark.parametrize("hosts", [2, 4, 16])
@pytest.mark.parametrize("nics", [2, 8])
def test_rings_stay_on_their_rails(tmp_path, hosts, nics):
    made = cluster(tmp_path, hosts=hosts, gpus=8, nic={"count": nics}, fabric=RAILS)
    rings = place(made, np.arange(made.gpus), 8, affinity=True).rings
    assert [crossings(made, ring) for ring in rings] == [(hosts, 0)] * 8


def test_channels_share_the_rails_evenly(tmp_path):
    made = cluster(tmp_path, hosts=4, gpus=8, nic={"count": 8}, fabric=RAILS)
    used = np.zeros((made.hosts, 8), int)
    for ring in place(made, np.arange(made.gpus), 8, affinity=True).rings:
        leaves = made.host[ring] != made.host[np.roll(ring, -1)]
        np.add.at(used, (made.host[ring][leaves], made.fabric.endpoint_nic[
            made.endpoint[ring][leaves]]), 1)
    assert (used == 1).all()


@pytest.mark.parametrize("hosts", [3, 5, 7])
def test_an_odd_number_of_hosts_leaves_the_rail_at_most_once(tmp_path, hosts):
    made = cluster(tmp_path, hosts=hosts, gpus=8, nic={"count": 8}, fabric=RAILS)
    for ring in place(made, np.arange(made.gpus), 8, affinity=True).rings:
        assert crossings(made, ring)[1] <= 1


def test_hosts_that_differ_are_filled_by_their_common_group(tmp_path):
    eight = topology(gpus=8)["hosts"][0]
    twelve = eight | {"name": "o", "gpus": eight["gpus"] | {"count": 12}}
    made = cluster(tmp_path, hosts=[eight, twelve])
    assert common_group(made, np.arange(16)) == 8
    assert common_group(made, np.arange(made.gpus)) == 4
