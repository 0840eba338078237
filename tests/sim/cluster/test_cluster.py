"""A topology becomes numbered resources with the capacities and names that the file gives."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from sim.answer.scenario import run_scenario
from sim.cluster.cluster import Cluster
from sim.schema import TopologyError, load
from sim.schema.hosts import PCIE3_BPS
from sim.schema.parameters import PLAIN_VALUES, StackSet, load_stack
from tests.support.cluster_files import cluster, topology, write


def stack(made, **figures):
    """A stack without costs, with these figures."""
    own = StackSet.model_validate({"base": "ideal"} | figures, context=PLAIN_VALUES)
    return load_stack("own", {**made.topology.stacks, "own": own})


VPC = {"vnics": 2, "vnic_rate": "10Gbps", "host_rate": "16Gbps", "packet_rate": "2Mpps"}


def test_every_resource_has_a_name_of_its_own(tmp_path):
    made = cluster(tmp_path, hosts=2, gpus=4, vpc=VPC,
                   fabric={"template": "leaf-spine", "leaves": 2, "spines": 2, "links": 2})
    capacity = made.capacities(stack(made))
    names = [made.resource_name(number) for number in range(len(capacity))]
    assert len(names) == len(set(names))
    for wanted in ("h-1/gpu3 pcie out", "h-0/vnic1 in", "h-0/host out", "h-1/packets in",
                   "h-0/stack cores", "h-1/memory1", "h-0/gpu2 network thread",
                   "h-0/eth0->leaf0", "leaf1->spine0#2"):
        assert wanted in names
    with pytest.raises(IndexError):
        made.resource_name(len(capacity))


def test_capacities_by_hand(tmp_path):
    made = cluster(tmp_path, hosts=2, gpus=4, vpc=VPC, rate_bps=25e9,
                   host={"cores": 6, "memory": "90GB/s", "nvlink": {"rate": "130GB/s"},
                         "pcie": {"rate": "12GB/s"}})
    capacity = made.capacities(stack(made, cores=4, threads=2))
    by_name = {made.resource_name(number): capacity[number] for number in range(len(capacity))}
    assert by_name["h-0/eth0->switch0"] == 25e9 / 8
    assert by_name["h-1/gpu2 nvlink in"] == 130e9
    assert by_name["h-1/gpu2 pcie out"] == 12e9
    assert by_name["h-0/vnic1 out"] == 10e9 / 8
    assert by_name["h-0/host in"] == 2e9
    assert by_name["h-0/packets out"] == 2e6
    assert by_name["h-0/stack cores"] == 4
    assert by_name["h-1/gpu3 network thread"] == 2
    assert by_name["h-1/memory0"] == 90e9
    for more in ({"cores": 64}, {}):
        assert made.capacities(stack(made, **more))[made.blocks["cores"][0]] == 6


@pytest.mark.parametrize(("nics", "nodes", "wanted"), [
    (1, 2, [0, 0, 0, 0]), (2, 2, [0, 0, 1, 1]), (4, 2, [0, 0, 1, 1]), (4, 4, [0, 1, 2, 3]),
    (2, 1, [0, 0, 0, 0])])
def test_traffic_passes_the_memory_beside_its_nic(tmp_path, nics, nodes, wanted):
    made = cluster(tmp_path, gpus=4, nic={"count": nics}, host={"numa_nodes": nodes})
    assert made.memory.tolist() == [*wanted, *(nodes + node for node in wanted)]


def test_what_the_vpc_does_not_cap_has_no_resource(tmp_path):
    made = cluster(tmp_path, vpc={"vnics": 2})
    assert not {"vnic_out", "host_in", "packets_out"} & set(made.blocks)
    assert cluster(tmp_path).blocks.keys() == made.blocks.keys()


def test_groups_of_hosts_differ(tmp_path):
    big = topology(gpus=4)["hosts"][0] | {"name": "big", "count": 1}
    small = big | {"name": "small", "count": 2, "nvlink": "none",
                   "gpus": {"count": 1, "model": "old", "effective": "5TFLOPS"}}
    made = cluster(tmp_path, hosts=[big, small])
    assert made.host.tolist() == [0, 0, 0, 0, 1, 2]
    assert made.local.tolist() == [0, 1, 2, 3, 0, 0]
    assert made.flops.tolist() == [1e14] * 4 + [5e12] * 2
    assert made.has_nvlink.tolist() == [True, False, False]
    assert made.gpu_name(5) == "small-1/gpu0"


@pytest.mark.parametrize(("fabric", "nic", "links"), [
    ({"template": "single-switch"}, {}, 8),
    ({"template": "leaf-spine", "leaves": 4, "spines": 2, "links": 3}, {}, 8 + 24),
    ({"template": "rail", "hosts_per_leaf": 8, "spines": 2}, {"count": 2}, 16 + 4),
    ({"template": "clos3", "pods": 2, "leaves": 2, "aggs": 2, "cores": 4}, {}, 8 + 8 + 8),
    ({"template": "dual-tor", "pairs": 2, "spines": 2}, {"ports": 2, "bond": "dynamic"}, 16 + 8),
])
def test_templates_have_the_cables_that_the_file_says(tmp_path, fabric, nic, links):
    made = cluster(tmp_path, hosts=8, fabric=fabric, nic=nic)
    assert len(made.fabric.link_src) == 2 * links


def test_an_explicit_fabric(tmp_path):
    made = cluster(tmp_path, hosts=2, nic={"ports": 2, "bond": "dynamic"}, fabric={
        "rate": "100Gbps", "latency": "1us", "devices": [{"name": "a"}, {"name": "b"}],
        "links": [{"from": "h-0/eth0", "to": "a"}, {"from": "b", "to": "h-0/eth0.1"},
                  {"from": "h-1/eth0.0", "to": "a"}, {"from": "h-1/eth0.1", "to": "b"},
                  {"from": "a", "to": "b", "count": 2, "rate": "400Gbps", "latency": "0s"}]})
    fabric = made.fabric
    (port,) = fabric.links_between("h-0/eth0", "b")
    assert port == fabric.endpoint_ports[0, 1]
    between = fabric.links_between("a", "b")
    assert fabric.link_bps[between].tolist() == [4e11, 4e11]
    assert fabric.link_latency_s[between].tolist() == [0.0, 0.0]


def test_a_template_that_does_not_fit_is_the_files_error(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise ValueError("hosts do not fit")

    monkeypatch.setattr("harp.routing.templates.single_switch", refuse)
    made = load(write(tmp_path, topology()))
    with pytest.raises(TopologyError, match=r"t\.yaml:\d+:\d+: fabric: hosts do not fit"):
        Cluster(made)


def test_a_large_cluster(tmp_path):
    made = cluster(tmp_path, hosts=2048, gpus=8, fabric={
        "template": "clos3", "pods": 16, "leaves": 8, "aggs": 8, "cores": 64})
    assert made.gpus == 16384
    assert np.isfinite(made.capacities(stack(made))).all()


def test_a_cluster_can_be_pickled(tmp_path):
    """So that processes can share out the rows of a file."""
    built = cluster(tmp_path, hosts=4, gpus=2, vpc={"vnics": 2, "vnic_rate": "10Gbps",
                                                    "host_rate": "25Gbps", "packet_rate": "1Mpps"},
                    fabric={"template": "leaf-spine", "leaves": 2, "spines": 2})
    copied = pickle.loads(pickle.dumps(built))
    scenario = built.topology.scenarios[0]
    assert run_scenario(copied, scenario, 8) == run_scenario(built, scenario, 8)
    count = sum(len(block.capacity) for block in built.blocks.values())
    assert [copied.resource_name(i) for i in range(count)] == [
        built.resource_name(i) for i in range(count)]


@pytest.mark.parametrize("model", ["vgg16", "bert-large"])
def test_the_speed_of_one_gpu_may_be_given_in_samples(tmp_path, model):
    gpus = {"count": 1, "model": "any", "samples_per_s": 251.0}
    built = cluster(tmp_path, hosts=1, host={"gpus": gpus}, workload={
        "model": model, "batch": 32, "framework": "free"})
    row = run_scenario(built, built.topology.scenarios[0], 1)[0]
    assert row.images_per_s == pytest.approx(251.0)


@pytest.mark.parametrize(("rate", "given", "gigabytes"), [
    ("100Gbps", {}, 128), ("200Gbps", {}, 204.8), ("400Gbps", {}, 307.2), ("1600Gbps", {}, 307.2),
    ("100Gbps", {"pcie": {"rate": "48GB/s"}}, 307.2), ("400Gbps", {"memory": "77GB/s"}, 77)])
def test_memory_is_as_old_as_the_lanes(tmp_path, rate, given, gigabytes):
    """Channels of DDR4-2666, DDR4-3200 and DDR5-4800, of 8 bytes: 6, 8 and 8."""
    made = cluster(tmp_path, nic={"rate": rate}, host={"pcie": None} | given)
    block = made.blocks["memory"]
    assert made.capacities(load_stack("ideal", made.topology.stacks))[block.first] == pytest.approx(
        gigabytes * 1e9)


@pytest.mark.parametrize(("gpus", "nics", "generation"), [(8, 4, 0), (8, 16, 1), (8, 32, 2)])
def test_a_gpus_lanes_are_as_fast_as_its_share_of_the_nics(tmp_path, gpus, nics, generation):
    made = cluster(tmp_path, gpus=gpus, nic={"count": nics, "rate": "100Gbps"},
                   host={"pcie": None})
    assert made.topology.hosts[0].pcie_link.rate == PCIE3_BPS * 2**generation
