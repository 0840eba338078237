"""``harp probe``: paths through a network of kernel routers, discovered from outside."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from dataclasses import replace
from ipaddress import IPv4Address

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from harp.cli.main import harp
from harp.net.traceroute import Trace
from harp.routing import discovered
from harp.routing.deployment import Deployment
from harp.routing.jobs import Ranks, Wanted, plan_job
from harp.routing.templates import Endpoints, SwitchHash, Wires, leaf_spine
from lab.namespace import why_unusable
from lab.veth import veth_pair
from lab.wiring import Wiring
from tests.support.cluster_files import topology, write
from tests.support.levels import long
from tests.system.test_deployed_plan import data_crosses

root_only = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())


def run(*words):
    return CliRunner().invoke(harp, ["probe", *map(str, words)])


@pytest.fixture(scope="module")
def wired():
    """A leaf-spine of Linux routers with four spines, and its fabric."""
    wires = Wires(1e9, 1e-6, SwitchHash("linux", seed=5))
    fabric = replace(leaf_spine(Endpoints.uniform(4, bps=1e9), leaves=2, spines=4, wires=wires),
                     endpoints=tuple(f"h-{host}/eth0" for host in range(4)))
    with closing(Wiring(fabric, 1.0, 1500)) as wiring:
        yield fabric, wiring


def spine_of(fabric, port):
    """By the hash, which the probe does not know."""
    ptr, links = fabric.route(fabric.flows(0, 3, port, 61000))
    return fabric.link_name(int(links[ptr[0] + 1]))


@root_only
def test_ports_are_distinguished_by_the_spine_that_they_take(wired, tmp_path):
    fabric, wiring = wired
    file = tmp_path / "map.json"
    with wiring.hosts[0].entered():
        done = run(wiring.address(3), "--ports", "61256-61279",
                   "--source", wiring.address(0), "-o", file)
    assert done.exit_code == 0, done.stderr
    assert "24 source ports map to 4 paths" in done.stderr
    ways = discovered.from_json(file.read_text())
    assert discovered.from_json(discovered.to_json(ways)) == ways
    assert {way.source for way in ways} == {wiring.address(0)}
    assert sorted(port for way in ways for port in way.ports) == list(range(61256, 61280))
    taken = [{spine_of(fabric, port) for port in way.ports} for way in ways]
    assert all(len(spines) == 1 for spines in taken)
    assert len(set.union(*taken)) == 4
    assert len({way.routers[0] for way in ways}) == 1  # the leaf
    assert len({way.routers[1] for way in ways}) == 4


@root_only
def test_a_plan_is_held_against_the_routers_that_its_flows_pass(wired, tmp_path):
    """Then the routers hash otherwise, and no host learns of it."""
    fabric, wiring = wired
    each = np.arange(4)
    ranks = Ranks(each, each, np.ones(4, np.int64), tuple(f"h-{host}" for host in range(4)))
    file = tmp_path / "plan.json"
    file.write_text(plan_job(fabric, ranks, Wanted([(0, 3)], paths=4)).to_json())

    def check(host):
        with wiring.hosts[host].entered():
            return run("--plan", file)
    done = check(0)
    assert done.exit_code == 0, done.stderr
    assert "4 of its 4 flows pass 5 routers" in done.stdout
    leaf = wiring.switches[0]
    try:
        leaf.sysctl("ipv4.fib_multipath_hash_seed", 77)
        done = check(0)
    finally:
        leaf.sysctl("ipv4.fib_multipath_hash_seed", int(fabric.hash_salt[0]))
    assert done.exit_code == 1
    assert f"{file} does not match: 100.64.0." in done.stderr
    assert "Make it again with harp plan" in done.stderr
    assert "no flow starts at an address of this host" in check(1).stderr


def test_a_plan_of_tcp_is_not_held_against_paths_of_udp(tmp_path):
    fabric = leaf_spine(Endpoints.uniform(2, bps=1e9), leaves=2, spines=2)
    each = np.arange(2)
    ranks = Ranks(each, each, np.ones(2, np.int64), ("h-0", "h-1"))
    file = tmp_path / "plan.json"
    file.write_text(plan_job(fabric, ranks, Wanted([(0, 1)], protocol="tcp")).to_json())
    done = run("--plan", file)
    assert done.exit_code == 1
    assert f"{file} is a plan of TCP, and probes are UDP" in done.stderr


@long
@root_only
def test_a_plan_by_maps_is_never_one_of_tcp(job):
    done = plan(job(protocol="tcp"))
    assert done.exit_code == 1
    assert "maps hold the paths of UDP, and this job's flows are TCP's" in done.stderr


@pytest.fixture(scope="module")
def job(wired, tmp_path_factory):
    """A job over that fabric whose file knows no hash, but maps that two hosts have made."""
    fabric, wiring = wired
    folder = tmp_path_factory.mktemp("job")
    shape = {"template": "leaf-spine", "leaves": 2, "spines": 4, "hash": {"function": "crc16"}}
    write(folder, topology(hosts=4, rate_bps=1e9, fabric=shape), "top.yaml")
    for host in (0, 1):
        with wiring.hosts[host].entered():
            done = run(wiring.address(host + 2), "--ports", "61256-61267",
                       "--source", wiring.address(host), "-o", folder / f"map-{host}.json")
        assert done.exit_code == 0, done.stderr
    routers = {str(IPv4Address("100.64.0.0") + link): fabric.switches[near]
               for link, near in enumerate(fabric.link_src.tolist())
               if near < len(fabric.switches)}
    content = {"topology": "top.yaml", "maps": ["map-0.json", "map-1.json"], "routers": routers,
               "addresses": {f"h-{host}/eth0": wiring.address(host) for host in range(4)},
               "flows": [{"from": 0, "to": 2}, {"from": 1, "to": 3}, {"from": 2, "to": 0}]}

    def write_job(**changes):
        path = folder / "job.yaml"
        path.write_text(yaml.safe_dump(content | changes))
        return path
    return write_job


def plan(path, *words):
    return CliRunner().invoke(harp, ["plan", str(path), *map(str, words)])


@root_only
def test_a_plan_by_maps_needs_no_hash(wired, job, tmp_path):
    file, (_, wiring) = tmp_path / "plan.json", wired
    done = plan(job(), "-o", file)
    assert done.exit_code == 0, done.stderr
    assert "1 more have no path in the maps and will be hashed" in done.stderr
    made = Deployment.from_json(file.read_text())
    assert (made.max_load, made.bound) == (1.0, 1.0)
    assert len({flow.links[1].partition("->")[2] for flow in made.flows}) == 2
    for flow in made.flows:
        crossed, leaves = data_crosses(wiring, made, flow.sender, flow.receiver, 1)
        assert leaves == [flow.source]
        assert crossed == set(flow.links)
    assert plan(job(), "--check", file).stdout.startswith(f"{file} is valid")
    done = plan(job(maps=["map-0.json"]), "--check", file)
    assert "links, addresses or maps have changed since it was made" in done.stderr


@root_only
@pytest.mark.parametrize(("changes", "sentence"), [
    ({"routers": {}}, "routers has no name for 100.64.0."),
    ({"routers": {"100.64.0.9": "spine9"}}, "'spine9' is not a known switch"),
    ({"maps": ["none.json"]}, "none.json cannot be read: no such file"),
    ({"maps": ["top.yaml"]}, "it is not a map"),
], ids=["unnamed", "no switch", "no file", "no map"])
def test_a_mistake_in_maps_is_one_sentence(job, changes, sentence):
    done = plan(job(**changes))
    assert done.exit_code in {1, 2}
    assert sentence in done.stderr, done.stderr


@root_only
def test_a_way_without_routers_teaches_nothing():
    with veth_pair() as (near, far), near.space.entered():
        done = run(far.ipv4, "--ports", "61256-61259", "--seconds", "2")
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"{far.ipv4}: no router on the path answers" in done.stderr
    assert "nothing was discovered" in done.stderr


def test_a_target_that_answers_late_is_no_path(monkeypatch):
    """The probe of TTL 1 went unanswered, and the target answered that of TTL 2."""
    late = Trace(dict.fromkeys((61256, 61257), (None,)), sent_packets=4, seconds=1.0)
    monkeypatch.setattr("harp.net.traceroute.trace", lambda *_, **__: late)
    done = run("127.0.0.1", "--ports", "61256-61257")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "127.0.0.1: no router on the path answers" in done.stderr


@root_only
def test_a_router_at_its_limit_of_answers_is_not_silent(wired):
    """Linux answers a host six times at once, then once a second (icmp_ratelimit)."""
    _, wiring = wired
    with wiring.hosts[0].entered():
        for ports in ("61310-61317", "61318-61318", "61319-61319"):
            done = run(wiring.address(1), "--ports", ports, "--source", wiring.address(0))
            assert "source ports map to 1 path" in done.stderr
            assert "do not answer" not in done.stderr


@root_only
def test_a_port_of_another_process_is_passed_over(wired):
    _, wiring = wired
    with wiring.hosts[0].entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((wiring.address(0), 61300))
        done = run(wiring.address(1), "--ports", "61300-61301",
                   "--source", wiring.address(0))
    assert "1 source ports map to 1 path" in done.stderr
    assert "1 ports are in use" in done.stderr
    assert [way["ports"] for way in json.loads(done.stdout)["ways"]] == [[61301]]


WRONG = {("10.0.0.256",): "'10.0.0.256' is not an IPv4 address, like 10.0.0.2",
         ("10.0.0.2", "--ports", "5-1"): "'5-1' is not a range of UDP ports, like 61256-61287",
         ("10.0.0.2", "--port", "0"): "0 is not in the range 1<=x<=65535"}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_words_are_one_sentence(words):
    done = run(*words)
    assert done.exit_code == 2
    assert WRONG[words] in done.stderr


def test_an_address_of_another_host_is_one_sentence():
    done = run("127.0.0.1", "--source", "192.0.2.1")
    assert done.exit_code == 1
    assert "127.0.0.1 cannot be probed from 192.0.2.1: Cannot assign" in done.stderr
