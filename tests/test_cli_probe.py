"""``harp probe``: ways through a network of kernel routers, learnt from outside."""

from __future__ import annotations

import json
import socket
from contextlib import closing

import netns
import pytest
from click.testing import CliRunner

from harp.routing import learnt
from harp.routing.plan import PlanError
from harp.routing.templates import Endpoints, SwitchHash, Wires, leaf_spine
from harp.tools.main import harp
from sim.network.lab.wiring import Wiring

root_only = pytest.mark.skipif(bool(netns.usable()), reason=netns.usable())


def run(*words):
    return CliRunner().invoke(harp, ["probe", *map(str, words)])


@pytest.fixture(scope="module")
def wired():
    """A leaf-spine of Linux routers with four spines, and its fabric."""
    wires = Wires(1e9, 1e-6, SwitchHash("linux", seed=5))
    fabric = leaf_spine(Endpoints.uniform(4, bps=1e9), leaves=2, spines=4, wires=wires)
    with closing(Wiring(fabric, 1.0, 1500)) as wiring:
        yield fabric, wiring


def spine_of(fabric, port):
    """By the hash, which the probe does not know."""
    ptr, links = fabric.route(fabric.flows(0, 3, port, 61000))
    return fabric.link_name(int(links[ptr[0] + 1]))


@root_only
def test_ports_are_told_apart_by_the_spine_that_they_take(wired, tmp_path):
    fabric, wiring = wired
    file = tmp_path / "map.json"
    with wiring.hosts[0].entered():
        done = run(wiring.address(3), "--ports", "61256-61279",
                   "--source", wiring.address(0), "-o", file)
    assert done.exit_code == 0, done.stderr
    assert "4 ways by 24 source ports" in done.stderr
    ways = learnt.from_json(file.read_text())
    assert learnt.from_json(learnt.to_json(ways)) == ways
    assert {way.source for way in ways} == {wiring.address(0)}
    assert sorted(port for way in ways for port in way.ports) == list(range(61256, 61280))
    taken = [{spine_of(fabric, port) for port in way.ports} for way in ways]
    assert all(len(spines) == 1 for spines in taken)
    assert len(set.union(*taken)) == 4
    assert len({way.routers[0] for way in ways}) == 1  # the leaf
    assert len({way.routers[1] for way in ways}) == 4


@root_only
def test_a_way_without_routers_teaches_nothing():
    with netns.veth_pair() as (near, far), near.space.entered():
        done = run(far.ipv4, "--ports", "61256-61259", "--seconds", "2")
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"{far.ipv4}: no router on the way answers" in done.stderr
    assert "nothing was learnt" in done.stderr


@root_only
def test_a_port_of_another_process_is_passed_over(wired):
    _, wiring = wired
    with wiring.hosts[0].entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((wiring.address(0), 61300))
        done = run(wiring.address(1), "--ports", "61300-61301",
                   "--source", wiring.address(0))
    assert "1 way by 1 source ports" in done.stderr
    assert "1 ports are others'" in done.stderr
    assert [way["ports"] for way in json.loads(done.stdout)["ways"]] == [[61301]]


WRONG = {("10.0.0.256",): "'10.0.0.256' is no IPv4 address, as 10.0.0.2",
         ("10.0.0.2", "--ports", "5-1"): "'5-1' is no range of UDP ports, as 61256-61287",
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


@pytest.mark.parametrize(("text", "sentence"), [
    ("{", "it is no map"), ("{}", "'format' is missing"), ('{"format": "x"}', "its format is 'x'"),
    ('{"format": "harp-map-1", "ways": [{}]}', "'source' is missing"), ("[]", "it is no map")])
def test_what_is_no_map_is_one_sentence(text, sentence):
    with pytest.raises(PlanError, match=sentence):
        learnt.from_json(text)
