"""htsim's fat trees: switches and links of each tier beside those of our own fabric."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from sim.cluster.cluster import build_fabric
from sim.convert import main
from sim.schema import load
from tests.support.cluster_files import topology, write

if TYPE_CHECKING:
    from pathlib import Path

LEAF_SPINE = {"template": "leaf-spine", "leaves": 4, "spines": 2, "rate": "400Gbps",
              "latency": "500ns"}
CLOS3 = {"template": "clos3", "pods": 4, "leaves": 2, "aggs": 2, "cores": 4, "latency": "1us"}


def read(text: str) -> tuple[dict[str, int], list[dict[str, int]]]:
    """The first part and each tier of a file, as htsim's own parser sees them."""
    head, *tiers = re.split(r"^Tier \d$", text, flags=re.MULTILINE)
    return ({name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", head, re.MULTILINE)},
            [{name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", tier, re.MULTILINE)}
             for tier in tiers])


@pytest.mark.parametrize(("hosts", "fabric"), [(16, LEAF_SPINE), (16, CLOS3)])
def test_a_tree_has_our_fabrics_switches_and_links(tmp_path: Path, hosts: int,
                                                   fabric: dict[str, Any]) -> None:
    source = write(tmp_path, topology(hosts=hosts, fabric=fabric))
    found = CliRunner().invoke(main, [str(source), str(tmp_path / "h.topo"), "--to", "htsim"])
    assert found.exit_code == 0, found.output
    head, tiers = read((tmp_path / "h.topo").read_text())
    assert head == {"Nodes": hosts, "Tiers": len(tiers),
                    "Podsize": hosts // int(fabric.get("pods", 1))}
    links, switches, below = 0, 0, hosts
    for tier in tiers:  # the links that leave a tier's switches upwards are those below the next
        links += below
        count = below // tier["Radix_Down"]
        switches += count
        below = count * tier.get("Radix_Up", 0)
    ours = build_fabric(load(source))
    assert (switches, links) == (len(ours.switches), len(ours.link_src) // 2)
    assert {tier["Downlink_Latency_ns"] for tier in tiers} == {
        round(float(ours.link_latency_s[0]) * 1e9)}
    assert {tier["Downlink_speed_Gbps"] for tier in tiers} == set((ours.link_bps / 1e9).tolist())


def test_oversubscription_is_noted(tmp_path: Path) -> None:
    fabric = LEAF_SPINE | {"rate": "100Gbps", "spines": 2}
    source = write(tmp_path, topology(hosts=16, fabric=fabric))
    CliRunner().invoke(main, [str(source), str(tmp_path / "h.topo"), "--to", "htsim"])
    assert read((tmp_path / "h.topo").read_text())[1][0]["Oversubscribed"] == 2


@pytest.mark.parametrize(("hosts", "fabric", "says"), [
    (16, {"template": "single-switch"}, "htsim has no single-switch"),
    (16, LEAF_SPINE | {"links": 2}, "2 parallel links"),
    (15, LEAF_SPINE, "hosts do not fill 4 leaves alike"),
    (16, LEAF_SPINE | {"rate": "1.5Gbps"}, "htsim has no 1.5"),
    (16, LEAF_SPINE | {"latency": "1.5ns"}, "htsim has no 1.5")])
def test_features_that_htsim_lacks_are_one_sentence(tmp_path: Path, hosts: int,
                                                    fabric: dict[str, Any], says: str) -> None:
    source = write(tmp_path, topology(hosts=hosts, fabric=fabric))
    found = CliRunner().invoke(main, [str(source), str(tmp_path / "h.topo"), "--to", "htsim"])
    assert found.exit_code == 2
    assert says in found.output
    assert found.output.count("\n") == 1
    assert not (tmp_path / "h.topo").exists()
