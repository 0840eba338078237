"""Input files of ``harp plan``: mistakes in a job, each one sentence."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from harp.cli.main import harp
from tests.harp.cli.plan.planned import run
from tests.support.cluster_files import topology, write_job

WRONG = {
    "no such NIC": ({"addresses": {"h-0/eth7": "10.0.0.1"}},
                    "addresses['h-0/eth7']: 'h-0/eth7' is not a known NIC of the topology"),
    "no address": ({"addresses": {"h-0/eth0": "10.0.0.1"}},
                   "addresses: h-1/eth0 has no address; allowed: one for each of 8 NICs"),
    "twice": ({"addresses": {f"h-{n}/eth0": "10.0.0.1" for n in range(8)}},
              "10.0.0.1 is h-0/eth0's already; allowed: an address of its own for each NIC"),
    "no IPv4": ({"addresses": {"h-0/eth0": "fd00::1"}}, "'fd00::1' is no IPv4 address"),
    "no rank": ({"flows": [{"from": 0, "to": 8}]},
                "flows[0].to: there is no rank 8; allowed: 0 to 7, the job's GPUs"),
    "no pattern": ({"flows": "rign"}, "did you mean 'ring'?"),
    "a typo": ({"conections": 2}, "did you mean 'connections'?"),
    "ports": ({"ports": {"listen": 62000}},
              "ports: ports out of order; allowed: listen < first_source <= last_source"),
    "too few": ({"ports": {"listen": 61000, "first_source": 61001}, "engines": 2},
                "2 ports are needed to listen on a host, and from 61000 to 61000 there are 1"),
    "no switch": ({"seeds": {"laef0": 1}}, "'laef0' is not a known switch"),
    "no topology": ({"topology": "other.yaml"}, "other.yaml"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_in_a_job_is_one_sentence(job, case):
    keys, sentence = WRONG[case]
    done = run("plan", job(**keys))
    assert (done.exit_code, done.stdout) == (2, "")
    assert sentence in str(done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_a_bond_without_a_known_hash_is_refused(job):
    fabric = {"template": "dual-tor", "pairs": 2, "spines": 2}
    done = run("plan", job(fabric=fabric, nic={"ports": 2, "bond": "dynamic"}))
    assert done.exit_code == 2
    assert "NICs of h have several ports, among which no hash that is known chooses" in done.stderr


@pytest.mark.parametrize(("flows", "sentence"), [
    ("rign", "flows: found 'rign'; allowed: ring, alltoall, or a list of pairs {from: 0, to: 1}; "
             "did you mean 'ring'?"),
    (5, "flows: found 5; allowed: ring, alltoall, or a list of pairs {from: 0, to: 1}"),
    ([], "flows: found an empty list; allowed: ring, alltoall, or a list of pairs "
         "{from: 0, to: 1}"),
    ([{"from": 0, "to": -1}], "flows[0].to: found -1; allowed: at least 0"),
    ([{"from": 0}], "flows[0].to: is missing and has no default"),
    ([{"from": 0, "to": 0}], "flows[0]: rank 0 sends to itself; allowed: pairs of two ranks"),
    ([{"from": 0, "too": 1}], "flows[0].too: unknown key 'too'; allowed: from, to; "
                              "did you mean 'to'?"),
])
def test_flows_that_are_none_are_one_problem(tmp_path, flows, sentence):
    job = write_job(tmp_path, topology(hosts=4), flows=flows)
    done = CliRunner().invoke(harp, ["plan", str(job)], env={"HARP_CONF_FILE": "/dev/null"})
    assert done.exit_code == 2
    assert done.stderr.rstrip().endswith(sentence)
