"""Input files of ``harp plan``: a job and the topology that it names, and rates of links."""

from __future__ import annotations

import pytest

from sim.schema import TopologyError
from sim.schema.job import load_job, load_rates
from tests.support.cluster_files import topology, write, write_job

TWO = topology(gpus=2)
GOOD = {"h-0/eth0": "10.9.0.1", "h-1/eth0": "10.9.0.2"}


def test_a_job_has_the_topology_that_it_names_from_its_own_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir("/")
    job, made = load_job(write_job(tmp_path, TWO, flows="alltoall", connections=3))
    assert made.host_names == ("h-0", "h-1")
    assert job.addresses == GOOD
    assert (job.flows, job.connections, job.paths, job.protocol) == ("alltoall", 3, 1, "udp")


def test_pairs_name_their_ranks(tmp_path) -> None:
    job, _ = load_job(write_job(tmp_path, TWO, flows=[{"from": 3, "to": 0}]))
    (pair,) = job.flows
    assert (pair.sender, pair.receiver) == (3, 0)


@pytest.mark.parametrize(("keys", "key", "says"), [
    ({"addresses": {"h-0/eth0": "10.9.0.1"}}, "addresses", "h-1/eth0 has no address; allowed: one"),
    ({"addresses": GOOD | {"h-1/eht0": "10.9.0.3"}}, "addresses['h-1/eht0']",
     "did you mean 'h-1/eth0'?"),
    ({"addresses": dict.fromkeys(GOOD, "10.9.0.1")}, "addresses['h-1/eth0']",
     "10.9.0.1 is h-0/eth0's already"),
    ({"addresses": GOOD | {"h-1/eth0": "10.9.0.256"}}, "addresses['h-1/eth0']",
     "'10.9.0.256' is no IPv4 address"),
    ({"addresses": GOOD | {"h-1/eth0": "224.0.0.1"}}, "addresses['h-1/eth0']",
     "224.0.0.1 is the address of no host"),
    ({"hosts": ["h-0", "h-2"]}, "hosts[1]", "'h-2' is not a known host of the topology"),
    ({"hosts": ["h-0", "h-0"]}, "hosts[1]", "h-0 is named twice; allowed: each host once"),
    ({"gpus": [0, 2]}, "gpus[1]", "there is no GPU 2 on each host; allowed: 0 to 1, each once"),
    ({"flows": [{"from": 0, "to": 4}]}, "flows[0].to", "there is no rank 4; allowed: 0 to 3"),
    ({"flows": [{"from": 1, "to": 1}]}, "flows[0]", "rank 1 sends to itself"),
    ({"gpus": [1], "flows": [{"from": 0, "to": 2}]}, "flows[0].to", "allowed: 0 to 1, the job's"),
    ({"flows": "rnig"}, "flows", "did you mean 'ring'?"),
    ({"ports": {"listen": 62000}}, "ports", "allowed: listen < first_source <= last_source")])
def test_a_job_that_its_topology_cannot_have_is_one_sentence(tmp_path, keys, key, says) -> None:
    path = write_job(tmp_path, TWO, **keys)
    with pytest.raises(TopologyError) as caught:
        load_job(path)
    assert says in str(caught.value)
    assert caught.value.key == key
    assert str(caught.value).startswith(f"{path}:")
    assert "\n" not in str(caught.value)


def test_a_bond_among_ports_that_no_known_hash_chooses_is_refused(tmp_path) -> None:
    bonded = topology(nic={"ports": 2, "bond": "dynamic"})
    with pytest.raises(TopologyError, match="NICs of h have several ports, among which no hash"):
        load_job(write_job(tmp_path, bonded))
    known = topology(nic={"ports": 2, "bond": "lacp-3+4"})
    assert load_job(write_job(tmp_path, known))[1].hosts[0].nics[0].bond == "lacp-3+4"


def test_rates_of_links_are_bits_a_second(tmp_path) -> None:
    path = write(tmp_path, {"rates": {"leaf0->spine1": "2.5Gbps", "a->b": "0bps"}}, "rates.yaml")
    assert load_rates(path) == {"leaf0->spine1": 2.5e9, "a->b": 0.0}
    with pytest.raises(TopologyError, match="rates: "):
        load_rates(write(tmp_path, {"rates": {}}, "rates.yaml"))
