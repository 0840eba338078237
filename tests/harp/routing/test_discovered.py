"""Maps of discovered paths, and plans over them."""

from ipaddress import IPv4Address

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp.routing import discovered
from harp.routing.discovered import Choice, DiscoveredPath, Map, plan_discovered
from harp.routing.path_plan import PlanError
from harp.routing.paths import equal_cost_paths
from harp.routing.templates import Endpoints, Wires, leaf_spine

FABRIC = leaf_spine(Endpoints.uniform(8, bps=1e9), leaves=2, spines=4,
                    wires=Wires(1e9, 1e-6))
ROUTERS = {f"100.64.0.{number}": name for number, name in enumerate(FABRIC.switches)}
NAMED = {name: address for address, name in ROUTERS.items()}
IPS = [str(IPv4Address(int(ip))) for ip in FABRIC.endpoint_ip]


def by_spine(spine, *, src=0, dst=7, ports=(61256,), routers=None):
    named = [NAMED[name] for name in ("leaf0", f"spine{spine}", "leaf1")]
    return DiscoveredPath(IPS[src], f"{IPS[dst]}:61000",
                          tuple(named) if routers is None else routers, ports)


def spine_of(links):
    return FABRIC.node_name(int(FABRIC.link_dst[links[1]]))


@settings(max_examples=30)
@given(st.lists(st.builds(
    DiscoveredPath, st.sampled_from(IPS), st.sampled_from([f"{ip}:61000" for ip in IPS]),
    st.lists(st.none() | st.sampled_from(sorted(ROUTERS)), max_size=4).map(tuple),
    st.lists(st.integers(1, 65535), max_size=4).map(tuple)), max_size=4))
def test_a_map_reads_back(paths):
    assert discovered.from_json(discovered.to_json(paths)) == paths


def test_paths_are_those_of_the_fabric_whose_routers_answered():
    found = Map([by_spine(2), by_spine(0, ports=(5, 6)),
                 by_spine(3, routers=(None, NAMED["spine3"]))], ROUTERS)
    choices = found.choices(FABRIC, 0, 7, 61000)
    assert [spine_of(choice.links) for choice in choices] == ["spine2", "spine0", "spine3"]
    assert [choice.ports for choice in choices] == [(61256,), (5, 6), (61256,)]
    every = equal_cost_paths(FABRIC, np.array([0]), np.array([7]), 9)[0].tolist()
    assert all([*choice.links] in every for choice in choices)
    assert found.choices(FABRIC, 7, 0, 61000) == []


def test_paths_of_silent_routers_are_each_another_path_of_the_fabric():
    silent = [by_spine(0, routers=(None, None, None), ports=(port,)) for port in range(1, 5)]
    choices = Map(silent, {}).choices(FABRIC, 0, 7, 61000)
    assert sorted(spine_of(choice.links) for choice in choices) == [f"spine{n}" for n in range(4)]


def test_a_map_that_does_not_fit_is_one_sentence():
    with pytest.raises(PlanError, match="routers has no name for 10.9.9.9 on the path from "
                                        f"{IPS[0]} to {IPS[7]}:61000"):
        Map([by_spine(0, routers=("10.9.9.9",))], ROUTERS).choices(FABRIC, 0, 7, 61000)
    with pytest.raises(PlanError, match="by leaf1, a silent router, a path that the topology does "
                                        "not have"):
        Map([by_spine(0, routers=(NAMED["leaf1"], None))], ROUTERS).choices(FABRIC, 0, 7, 61000)


def test_a_fingerprint_changes_with_the_map():
    one, other = (Map([by_spine(spine)], ROUTERS) for spine in (0, 1))
    assert one.fingerprint(FABRIC) != other.fingerprint(FABRIC)
    assert one.fingerprint(FABRIC) == Map([by_spine(0)], ROUTERS).fingerprint(FABRIC)
    assert one.fingerprint(FABRIC) != FABRIC.fingerprint


def test_flows_over_discovered_paths_share_no_link_and_no_port():
    src, dst = np.arange(4), np.arange(4) + 4
    choices = [[Choice(tuple(path), (61256, 61257)) for path in rows]
               for rows in equal_cost_paths(FABRIC, src, dst, 9).tolist()]
    plan = plan_discovered(FABRIC, src, dst, np.full(4, 1e9), np.full(4, 61000), choices, [0] * 4)
    assert (plan.max_load, plan.bound) == (1.0, 1.0)
    assert plan.unrealised == 2  # of four flows that want ports of their own two get them
    assert sorted(plan.source_port.tolist()[:2]) == [61256, 61257]
    assert plan.ecmp_load == 4.0  # by their first ports all go by the first spine


@pytest.mark.parametrize(("text", "sentence"), [
    ("{", "it is not a map"), ("{}", "its format is None"),
    ('{"format": "x"}', "its format is 'x'"),
    ('{"format": "harp-map-1", "ways": [{}]}', r"source is missing in ways\[0\]"),
    ("[]", "it is not a map")])
def test_a_file_that_is_no_map_is_one_sentence(text, sentence):
    with pytest.raises(PlanError, match=sentence):
        discovered.from_json(text)
