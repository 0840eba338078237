"""ns-3's topology file: its counts and links, by a reader of the format as HPCC describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import networkx as nx
import pytest
from click.testing import CliRunner

from sim.convert import main
from tests.support.cluster_files import topology, write

if TYPE_CHECKING:
    from pathlib import Path


def test_the_file_has_every_nic_switch_and_cable(tmp_path: Path) -> None:
    source = write(tmp_path, topology(hosts=8, rate_bps=200e9, fabric={
        "template": "leaf-spine", "leaves": 2, "spines": 2, "rate": "400Gbps", "latency": "5us"}))
    found = CliRunner().invoke(main, [str(source), str(tmp_path / "n.txt"), "--to", "ns3"])
    assert found.exit_code == 0, found.output
    lines = (tmp_path / "n.txt").read_text().splitlines()
    assert lines[0].split() == ["12", "4", "12"]
    assert lines[1].split() == ["8", "9", "10", "11"]
    graph = nx.Graph()
    for line in lines[2:]:
        one, other, rate, latency, loss = line.split()
        assert (latency, loss) == ("0.005ms", "0")
        graph.add_edge(int(one), int(other), rate=rate)
    assert graph.number_of_edges() == 12
    hosts = [graph.edges[edge]["rate"] for edge in graph.edges if min(edge) < 8]
    assert hosts == ["200Gbps"] * 8
    assert nx.shortest_path_length(graph, 0, 7) == 4
    assert nx.shortest_path_length(graph, 0, 3) == 2


@pytest.mark.parametrize("content", [b"", b"hosts: 3\n", b"\xff\xfe\x00"])
def test_a_file_that_is_no_cluster_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.yaml").write_bytes(content)
    found = CliRunner().invoke(main, [str(tmp_path / "x.yaml"), str(tmp_path / "i.json")])
    assert found.exit_code == 2
    assert found.output.count("\n") == 1
    assert not (tmp_path / "i.json").exists()
