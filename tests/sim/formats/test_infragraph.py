"""InfraGraph out and in: its own service, its blueprints, round trips, wrong files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from infragraph.blueprints.devices.generic.generic_switch import Switch
from infragraph.blueprints.devices.generic.server import Server
from infragraph.blueprints.devices.nvidia.dgx import NvidiaDGX
from infragraph.blueprints.fabrics.clos_fat_tree_fabric import ClosFatTreeFabric
from infragraph.blueprints.fabrics.closfabric import ClosFabric
from infragraph.blueprints.fabrics.dragonfly_fabric import DragonflyFabric
from infragraph.blueprints.fabrics.hybrid_debruijn_fabric import HybridDeBruijnFabric
from infragraph.blueprints.fabrics.multi_host_debruijn_fabric import MultiHostDeBruijnFabric
from infragraph.blueprints.fabrics.single_tier_fabric import SingleTierFabric
from infragraph.infragraph_service import InfraGraphService

from sim.cluster.cluster import build_fabric
from sim.convert import main
from sim.formats.infragraph_export import infrastructure_of
from sim.formats.infragraph_schema import pairs, parts
from sim.schema import load
from sim.schema.input_errors import Problem
from tests.support import ROOT
from tests.support.json_changes import anything, changed, places
from tests.support.levels import draws

if TYPE_CHECKING:
    from pathlib import Path

    from harp.routing.fabric import Fabric

SMALL = ("bonded-2x100g", "dual-tor-failover", "explicit-triangle", "leaf-spine-2to1",
         "rail-h100-8x400g", "taco-vgg16-v100-25g", "three-continents")


def convert(*arguments: Any) -> str:
    found = CliRunner().invoke(main, [str(each) for each in arguments])
    assert found.exit_code == 0, found.output
    return found.output


def cables(fabric: Fabric) -> list[tuple[tuple[str, str], float, float]]:
    """Ends, rate and latency of each cable, in no order; names as InfraGraph keeps them."""
    ends = [fabric.link_name(link).replace(".", "_").split("->")
            for link in range(0, len(fabric.link_src), 2)]
    return sorted(((min(pair), max(pair)), float(bps), round(float(latency_s), 12))
                  for pair, bps, latency_s in zip(ends, fabric.link_bps[::2],
                                                  fabric.link_latency_s[::2], strict=True))


@pytest.mark.parametrize("name", SMALL)
def test_infragraphs_own_service_takes_what_is_written(name: str) -> None:
    topology = load(ROOT / "topologies" / f"{name}.yaml")
    made = infrastructure_of(topology)
    service = InfraGraphService()
    service.set_graph(json.dumps(made))
    graph = service.get_networkx_graph()
    fabric = build_fabric(topology)
    ports = [node for node in graph if ".port." in node]
    inside = sum(len(device["edges"]) > 0 for device in made["devices"])
    assert inside == len(made["devices"])
    assert len(ports) == sum(int(node) < len(fabric.switches) for node in
                             np.concatenate([fabric.link_src[::2], fabric.link_dst[::2]]))
    assert len([node for node in graph if ".xpu." in node]) == topology.gpu_count


@pytest.mark.parametrize("name", SMALL)
def test_a_topology_comes_back_key_by_key(tmp_path: Path, name: str) -> None:
    source = ROOT / "topologies" / f"{name}.yaml"
    convert(source, tmp_path / "i.json")
    assert "As the annotations have it" in convert(tmp_path / "i.json", tmp_path / "t.yaml")
    assert yaml.safe_load((tmp_path / "t.yaml").read_text()) == load(source).plain


@pytest.mark.parametrize("name", SMALL)
def test_the_graph_alone_gives_the_same_cables(tmp_path: Path, name: str) -> None:
    source = ROOT / "topologies" / f"{name}.yaml"
    topology = load(source)
    made = infrastructure_of(topology)
    (tmp_path / "i.json").write_text(json.dumps(made))
    gpu = () if topology.hosts[0].gpus.kind else ("--gpu", "A100")
    assert "Taken from the graph" in convert(tmp_path / "i.json", tmp_path / "t.yaml", *gpu)
    again = load(tmp_path / "t.yaml")
    assert again.host_names == topology.host_names
    assert again.gpu_count == topology.gpu_count
    assert [group.nic_names for group in again.hosts] == [
        group.nic_names for group in topology.hosts]
    renamed = {name: f"{name}-switch" for name in build_fabric(topology).switches
               if name in {group.name for group in topology.hosts}}
    wanted = sorted((tuple(sorted(renamed.get(end, end) for end in ends)), bps, latency_s)
                    for ends, bps, latency_s in cables(build_fabric(topology)))
    assert cables(build_fabric(again)) == wanted


def test_annotations_of_another_graph_do_not_count(tmp_path: Path) -> None:
    convert(ROOT / "topologies" / "rail-h100-8x400g.yaml", tmp_path / "i.json")
    made = json.loads((tmp_path / "i.json").read_text())
    made["links"][0]["physical"]["bandwidth"]["gigabits_per_second"] = 200.0
    (tmp_path / "i.json").write_text(json.dumps(made))
    assert "Taken from the graph" in convert(tmp_path / "i.json", tmp_path / "t.yaml")
    assert load(tmp_path / "t.yaml").hosts[0].nics[0].rate == 200e9


@pytest.mark.parametrize(("profile", "nvlink_bps", "form"), [
    ("dgx_a100", 300e9 * 8, "json"), ("dgx_h100", 450e9 * 8, "yaml")])
def test_the_blueprint_of_a_clos_of_dgx_is_read(tmp_path: Path, profile: Any, nvlink_bps: float,
                                                form: str) -> None:
    blueprint = ClosFatTreeFabric(Switch(port_count=16), NvidiaDGX(profile), 2, [])
    path = tmp_path / f"clos.{form}"
    path.write_text(blueprint.serialize(form))
    convert(path, tmp_path / "t.yaml")
    topology = load(tmp_path / "t.yaml")
    (group,) = topology.hosts
    assert (group.count, group.gpus.count, len(group.nic_names)) == (16, 8, 8)
    assert group.nvlink is not None
    assert group.nvlink.rate == nvlink_bps
    fabric = build_fabric(topology)
    assert len(fabric.switches) == 16 + 8  # k = 16: 2 (k/2) leaves, k/2 spines
    assert len(fabric.link_src) // 2 == 2 * 128
    assert set(fabric.link_bps.tolist()) == {100e9, 200e9}


FABRICS = {
    "Clos": ClosFabric,
    "Dragonfly": lambda: DragonflyFabric(Switch(port_count=16), Server(1), 4, 2, 2),
    "hybrid de Bruijn": lambda: HybridDeBruijnFabric(Switch(port_count=16), Server(1), 3),
    "de Bruijn": lambda: MultiHostDeBruijnFabric(Switch(port_count=16), Server(1), 3),
    "one switch": lambda: SingleTierFabric(Server(2), 4)}


def joined(text: str) -> list[tuple[str, ...]]:
    """Instances that the edges of an infrastructure join, by InfraGraph's service."""
    service = InfraGraphService()
    service.set_graph(text)
    counts = {one["name"]: one["count"] for one in json.loads(text)["instances"]}
    hosts = {node.split(".")[0] for node in service.get_networkx_graph() if ".xpu." in node}
    pairs = [[tuple(end.split(".")[:2]) for end in edge]
             for edge in service.get_networkx_graph().edges]
    return sorted(tuple(sorted(
        name if counts[name] == 1 and name not in hosts else f"{name}-{number}"
        for name, number in pair)) for pair in pairs if pair[0] != pair[1])


def cabled(path: Path) -> list[tuple[str, ...]]:
    """Hosts and switches that the cables of a topology file join."""
    links = yaml.safe_load(path.read_text())["fabric"]["links"]
    return sorted(tuple(sorted(link[end].split("/")[0] for end in ("from", "to")))
                  for link in links)


@pytest.mark.parametrize("name", FABRICS)
def test_each_fabric_of_the_package_has_the_cables_of_its_own_service(tmp_path: Path,
                                                                      name: str) -> None:
    text = FABRICS[name]().serialize("json")
    (tmp_path / "i.json").write_text(text)
    convert(tmp_path / "i.json", tmp_path / "t.yaml", "--gpu", "A100", "--nvlink", "none")
    assert cabled(tmp_path / "t.yaml") == joined(text)
    assert load(tmp_path / "t.yaml").gpu_count > 1


@pytest.mark.filterwarnings("ignore:Infrastructure has nodes that are not connected")
@pytest.mark.parametrize(("hosts", "nics", "ports"), [
    ("host", "eth", "port"), ("host[:]", "eth[0]", "port[4:]"), ("host[-2:]", "eth[::2]", "port"),
    ("host[1:3]", "eth[:-1]", "port[-2:]"), ("host[3:0:-1]", "eth[-1]", "port[1:6:2]")])
def test_an_end_is_a_slice_as_in_infragraphs_service(tmp_path: Path, hosts: str, nics: str,
                                                     ports: str) -> None:
    text = json.dumps({"name": "x", "devices": [
        {"name": "box", "links": [], "edges": [], "components": [
            {"name": "xpu", "count": 1, "choice": "xpu"}, {"name": "eth", "count": 4,
                                                           "choice": "nic"}]},
        {"name": "switch", "links": [], "edges": [], "components": [
            {"name": "port", "count": 8, "choice": "port"}]}],
        "links": [{"name": "cable"}],
        "instances": [{"name": "host", "device": "box", "count": 4},
                      {"name": "tor", "device": "switch", "count": 1}],
        "edges": [{"ep1": {"instance": hosts, "component": nics}, "ep2": {
            "instance": "tor[0]", "component": ports}, "scheme": "one2one", "link": "cable"}]})
    service = InfraGraphService()
    service.set_graph(text)
    wanted = {tuple(edge) for edge in service.get_networkx_graph().edges}
    near, far = ([f"{name}.{number}.{part}.{each}" for ((name, number),) in parts(instance, counts)
                  for ((part, each),) in parts(component, counts)]
                 for counts in ({"host": 4, "tor": 1, "eth": 4, "port": 8},)
                 for instance, component in ((hosts, nics), ("tor[0]", ports)))
    assert wanted
    assert set(pairs(near, far, "one2one")) == wanted


@pytest.mark.parametrize("component", ["eth[9]", "eth[-5]", "eth[2:2]", "eth[::0]", "eth[1:2:3:4]",
                                       "eth[a]", "eth[0", "eth[0:9]"])
def test_a_slice_that_takes_nothing_is_one_sentence(component: str) -> None:
    with pytest.raises(Problem, match=r"out of range|is no component"):
        parts(component, {"eth": 4})


def test_gaps_of_a_blueprint_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "clos.json"
    path.write_text(ClosFatTreeFabric(Switch(port_count=8), Server(1), 2, []).serialize("json"))
    target = tmp_path / "t.yaml"
    for options, says in (((), "--gpu with one of"), (("--gpu", "A100"), "--nvlink with")):
        found = CliRunner().invoke(main, [str(path), str(target), *options])
        assert found.exit_code == 2
        assert says in found.output
        assert not target.exists()
    convert(path, target, "--gpu", "A100", "--nvlink", "none")
    assert load(target).hosts[0].nvlink is None


def edited(**keys: Any) -> dict[str, Any]:
    return infrastructure_of(load(ROOT / "topologies" / "taco-vgg16-v100-25g.yaml")) | keys


WRONG = {
    "another version": (edited(hosts=[]), "InfraGraph 3.1 has no 'hosts' here"),
    "a negative count": (edited(instances=[{"name": "a", "device": "b", "count": -1}]),
                         "instances[0].count: found -1"),
    "an unknown device": (edited(instances=[{"name": "a", "device": "gn10x", "count": 1}]),
                          "there is no device 'gn10x'"),
    "an unknown link": (edited(edges=[{"ep1": {"instance": "a", "component": "b"}, "ep2": {
        "instance": "a", "component": "b"}, "scheme": "one2one", "link": "no"}]),
        "edges[0].link: there is no link 'no'"),
    "a scheme that nobody defines": (edited(edges=[{"ep1": {
        "instance": "gn10xp", "component": "eth"}, "ep2": {
            "instance": "switch0", "component": "port"}, "scheme": "ring", "link": "cable0"}]),
        "edges[0].scheme: the scheme ring; allowed: one2one, many2many"),
    "an unknown component": (edited(edges=[{"ep1": {
        "instance": "gn10xp", "component": "eth[7]"}, "ep2": {
        "instance": "switch", "component": "port[0]"}, "link": "cable0"}]), "edges[0].ep1"),
    "no hosts": (edited(instances=[{"name": "a", "device": "switch-2", "count": 1}]),
                 "no instance has an xpu"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_infrastructure_is_one_sentence(tmp_path: Path, case: str) -> None:
    made, says = WRONG[case]
    (tmp_path / "i.json").write_text(json.dumps(made))
    found = CliRunner().invoke(main, [str(tmp_path / "i.json"), str(tmp_path / "t.yaml")])
    assert found.exit_code == 2, found.output
    assert says in found.output
    assert found.output.count("\n") == 1
    assert not (tmp_path / "t.yaml").exists()


def test_annotations_for_another_version_are_one_sentence(tmp_path: Path) -> None:
    convert(ROOT / "topologies" / "taco-vgg16-v100-25g.yaml", tmp_path / "i.json")
    beside = tmp_path / "i.annotations.json"
    beside.write_text(beside.read_text().replace('"value": "3.1"', '"value": "4.0"'))
    found = CliRunner().invoke(main, [str(tmp_path / "i.json"), str(tmp_path / "t.yaml")])
    assert found.exit_code == 2
    assert "annotations for InfraGraph '4.0'; allowed: 3.1" in found.output


TACO = edited()
RACK = infrastructure_of(load(ROOT / "topologies" / "rail-h100-8x400g.yaml"))


@settings(max_examples=draws(150), deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=st.sampled_from((TACO, RACK)).flatmap(lambda made: st.tuples(
    st.just(made), st.sampled_from(places(made)))), value=anything)
def test_any_value_at_any_place_is_a_cluster_or_one_sentence(tmp_path: Path, made: Any,
                                                             value: Any) -> None:
    document, place = made
    (tmp_path / "i.json").write_text(json.dumps(changed(document, *place, value=value)))
    found = CliRunner().invoke(main, [str(tmp_path / "i.json"), str(tmp_path / "t.yaml"), "--gpu",
                                      "A100"])
    assert found.exit_code in {0, 2}, found.exception
    assert found.exit_code == 0 or found.stderr.count("\n") == 1


@pytest.mark.parametrize(("component", "says"), [
    ("gpu[0:4].core[0:999999]", "means 3,999,996 components"),
    ("gpu[0].core[0:999999].part[0:999999]", "means 999,998,000,001 components")])
def test_a_product_of_ranges_is_not_begun(component: str, says: str) -> None:
    with pytest.raises(Problem, match=says):
        parts(component, {"gpu": 8})


def test_more_cables_than_a_topology_file_holds_are_refused(tmp_path: Path) -> None:
    made = {"devices": [
        {"name": "host", "components": [{"name": "gpu", "count": 1, "choice": "xpu"},
                                        {"name": "eth", "count": 300, "choice": "nic"}]},
        {"name": "switch", "components": [{"name": "port", "count": 300, "choice": "port"}]}],
        "links": [{"name": "cable", "physical": {"bandwidth": {"gigabits_per_second": 25}}}],
        "instances": [{"name": name, "device": name, "count": 1} for name in ("host", "switch")],
        "edges": [{"ep1": {"instance": "host", "component": "eth"}, "link": "cable",
                   "ep2": {"instance": "switch", "component": "port"}, "scheme": "many2many"}]}
    (tmp_path / "i.json").write_text(json.dumps(made))
    found = CliRunner().invoke(main, [str(tmp_path / "i.json"), str(tmp_path / "t.yaml")])
    assert found.exit_code == 2
    assert "edges[0]: more than 66,666 cables" in found.stderr


@pytest.mark.parametrize("kind", ["devices", "links", "instances"])
def test_a_name_that_stands_twice_is_one_sentence(tmp_path: Path, kind: str) -> None:
    (tmp_path / "i.json").write_text(json.dumps(TACO | {kind: [*TACO[kind], TACO[kind][0]]}))
    found = CliRunner().invoke(main, [str(tmp_path / "i.json"), str(tmp_path / "t.yaml")])
    assert found.exit_code == 2
    assert f"{kind}[{len(TACO[kind])}].name: " in found.stderr
    assert "stands twice" in found.stderr
