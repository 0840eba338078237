"""Places of a host's devices, and the NICs of each GPU."""

from __future__ import annotations

import pytest

from sim.schema import TopologyError
from tests.support.cluster_files import cluster


@pytest.mark.parametrize(("gpus", "nics", "wanted"), [
    (8, 8, [0, 1, 2, 3, 4, 5, 6, 7]), (8, 2, [0, 0, 0, 0, 1, 1, 1, 1]), (4, 1, [0, 0, 0, 0]),
    (4, 3, [0, 0, 1, 2]), (2, 4, [0, 2])])
def test_gpus_spread_over_nics_in_order(tmp_path, gpus, nics, wanted):
    made = cluster(tmp_path, gpus=gpus, nic={"count": nics}, vpc={"vnics": nics})
    assert made.endpoint.tolist() == [*wanted, *(nics + nic for nic in wanted)]
    assert made.vnic.tolist() == made.endpoint.tolist()


@pytest.mark.parametrize(("nics", "affinity", "taken", "each"), [
    (2, {}, [0, 0, 1, 1], 1),
    (2, {"nic_nodes": [1, 0]}, [1, 1, 0, 0], 1),
    (2, {"nic_nodes": [1, 1]}, [0, 0, 1, 1], 1),          # nobody's node 0: they share all
    (2, {"gpu_nodes": [0, 1, 0, 1]}, [0, 1, 0, 1], 1),
    (8, {}, [0, 2, 4, 6], 2),
    (4, {"nic_nodes": [0, 1, 0, 1]}, [0, 2, 1, 3], 1),
    (1, {"gpu_nodes": [1, 1, 1, 1], "nic_nodes": [0]}, [0, 0, 0, 0], 1),
    (2, {"gpu_nics": [1, 0, 1, 0]}, [1, 0, 1, 0], 1),
])
def test_a_gpu_takes_the_nearest_nic(tmp_path, nics, affinity, taken, each):
    made = cluster(tmp_path, gpus=4, nic={"count": nics}, host={"affinity": affinity})
    assert made.endpoint.tolist() == [*taken, *(nics + nic for nic in taken)]
    assert set(made.own_nics.tolist()) == {each}


def test_a_nic_behind_the_same_switch_is_nearer_than_one_of_the_same_node(tmp_path):
    made = cluster(tmp_path, gpus=4, nic={"count": 4}, host={
        "numa_nodes": 1, "pcie_switches": 4, "affinity": {"nic_switches": [3, 2, 1, 0]}})
    assert made.endpoint.tolist()[:4] == [3, 2, 1, 0]
    assert (made.gpu_switch == made.nic_switch).all()


@pytest.mark.parametrize(("host", "says"), [
    ({"affinity": {"gpu_nodes": [0, 1]}},
     "affinity.gpu_nodes: 2 places for 4 GPUs; allowed: 4, one for each"),
    ({"affinity": {"nic_nodes": [2]}},
     r"affinity.nic_nodes\[0\]: 2 is too large: numa_nodes gives 2; allowed: 0 to 1"),
    ({"affinity": {"gpu_nics": [0, 0, 0, 1]}},
     r"affinity.gpu_nics\[3\]: 1 is too large: nics gives 1; allowed: 0 to 0"),
    ({"affinity": {"nic_switches": [0]}},
     r"affinity.nic_switches\[0\]: 0 is too large: pcie_switches gives 0; "
     "allowed: pcie_switches beside affinity"),
    ({"affinity": {"gpu_node": [0, 0, 1, 1]}}, "did you mean 'gpu_nodes'"),
])
def test_places_that_there_are_not_are_refused(tmp_path, host, says):
    with pytest.raises(TopologyError, match=says):
        cluster(tmp_path, gpus=4, host=host)
