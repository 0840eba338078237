"""Checks of a well-formed file: what makes no sense together is named where it stands."""

from __future__ import annotations

from typing import Any

import pytest

from sim.schema import TopologyError, load
from sim.schema.checks import check, check_fabric
from tests.support.cluster_files import topology, write

SPINES = {"template": "leaf-spine", "leaves": 2, "spines": 2}
CABLES = {"devices": [{"name": "a"}, {"name": "b"}], "links": [
    {"from": "h-0/eth0", "to": "a"}, {"from": "h-1/eth0", "to": "b"}, {"from": "a", "to": "b"}]}
HOSTS = topology()["hosts"][0] | {"count": 40_000}


def cables(*links: tuple[str, str]) -> dict[str, Any]:
    """The two devices with other links."""
    return {"fabric": CABLES | {"links": [{"from": near, "to": far} for near, far in links]}}


@pytest.mark.parametrize("given", [
    {}, {"fabric": SPINES}, {"fabric": CABLES},
    {"vpc": {"vnics": 1, "host_rate": "1Gbps", "burst": {"rate": "2Gbps", "bucket": "1MB"}}}])
def test_a_file_that_makes_sense_has_no_problem(tmp_path, given) -> None:
    made = load(write(tmp_path, topology(**given)))
    assert not list(check(made))
    assert not list(check_fabric(made))


@pytest.mark.parametrize(("given", "key", "says"), [
    ({"fabric": SPINES | {"leaves": 3}}, "fabric.leaves", "3 leaves for 2 hosts; allowed: at most"),
    ({"fabric": {"template": "clos3", "pods": 1, "leaves": 2, "aggs": 2, "cores": 3}},
     "fabric.cores", "3 cores do not divide among 2 aggs"),
    (cables(("h-0/eth0", "a"), ("h-0/eth0", "b"), ("h-1/eth0", "b")), "fabric.links[1]",
     "a second cable in port h-0/eth0.0"),
    (cables(("h-0/eth0", "a"), ("h-1/eth0", "b")), "fabric.links", "h-1 cannot reach host h-0"),
    (cables(("h-0/eth0", "a"), ("h-1/eht0", "b")), "fabric.links[1].from",
     "did you mean 'h-1/eth0.0'?"),
    (cables(("h-0/eth0", "h-1/eth0"), ("a", "b")), "fabric.links[0]", "from host to host"),
    ({"fabric": {"template": "single-switch", "switch": {"buffer": "2kB"}}},
     "fabric.switch.buffer", "a buffer of 2000 B for packets of 1500 B; allowed: at least 3000B"),
    ({"vpc": {"vnics": 1, "police": {}}}, "vpc.police", "a policer without a cap"),
    ({"vpc": {"vnics": 1, "vnic_rate": "1Gbps", "police": {"burst": "1us"}}}, "vpc.police.burst",
     "less than two packets of 1500 B; allowed: at least 24us"),
    ({"scenario": {"helpers": 1}}, "scenarios[0].helpers", "has no effect on stack 'ideal'"),
    ({"background": [{"name": "b", "senders": ["h-0"], "receivers": ["h-0"], "load": 0.5}]},
     "background[0].receivers", "'h-0' sends to no host but itself"),
    ({"faults": [{"name": "f", "kind": "slow-gpu", "gpu": "h-0/1", "at": "0s", "factor": 0.5}]},
     "faults[0].gpu", "'h-0/1' is not a GPU of h-0; allowed: h-0/0 to h-0/0"),
    ({"prices": {"hosts": {"g": 1.0}}}, "prices.hosts.g", "'g' is not a known host group"),
    ({"workload": {"model": "vgg16", "batch": 1, "framework": "free", "recompute": "full"}},
     "workload.recompute", "model vgg16 is no row of like transformer blocks"),
    ({"hosts": 4, "gpus": 2, "scenario": {"gpus": [3]}}, "scenarios[0].gpus[0]",
     "3 GPUs are not a whole number of hosts; allowed: 1 to 2, or whole hosts: 4, 6, 8"),
    ({"hosts": [HOSTS, HOSTS | {"name": "g"}]}, "hosts", "80000 hosts; allowed: at most 65536")])
def test_what_makes_no_sense_is_named_where_it_stands(tmp_path, given, key, says) -> None:
    with pytest.raises(TopologyError) as caught:
        load(write(tmp_path, topology(**given)))
    assert caught.value.key == key
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_jobs_share_a_host_where_no_scenario_runs_both(tmp_path) -> None:
    jobs = [{"name": name, "hosts": ["h-0"]} for name in ("a", "b")]
    scenarios = [{"name": name, "stack": "ideal", "jobs": [name]} for name in ("a", "b")]
    load(write(tmp_path, topology(jobs=jobs, scenarios=scenarios)))
    with pytest.raises(TopologyError, match="host 'h-0' already runs job 'a'") as caught:
        load(write(tmp_path, topology(jobs=jobs, scenarios=[
            scenarios[0] | {"jobs": ["a", "b"]}])))
    assert caught.value.key == "jobs[1].hosts[0]"
