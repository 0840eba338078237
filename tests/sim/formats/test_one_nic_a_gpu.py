"""The check of simulators in which a GPU and its NIC are one node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from sim.convert import main
from sim.formats.one_nic_a_gpu import check_nics
from sim.schema import TopologyError, load
from tests.support import ROOT
from tests.support.cluster_files import topology, write

if TYPE_CHECKING:
    from pathlib import Path


def test_hosts_with_fewer_nics_than_gpus_are_refused(tmp_path: Path) -> None:
    source = ROOT / "topologies" / "taco-vgg16-v100-25g.yaml"
    found = CliRunner().invoke(main, [str(source), str(tmp_path / "n.txt"), "--to", "ns3"])
    assert found.exit_code == 2
    assert "a NIC of one port for each GPU" in found.output
    assert not (tmp_path / "n.txt").exists()


def test_a_nic_of_one_port_for_each_gpu_is_right_and_anything_else_is_named(tmp_path: Path) -> None:
    check_nics(load(write(tmp_path, topology(gpus=2, nic={"count": 2}))), "a simulator")
    good = topology(gpus=2, nic={"count": 2})["hosts"][0]
    for bad, says in ((good | {"nics": [*good["nics"], {"name": "ib", "rate": "1Gbps"}]},
                       "3 NICs for 2 GPUs"),
                      (good | {"nics": [{"name": "eth", "rate": "1Gbps", "count": 2, "ports": 2,
                                         "bond": "none"}]}, "2 NICs for 2 GPUs")):
        made = load(write(tmp_path, topology(hosts=[good, bad | {"name": "g"}])))
        with pytest.raises(TopologyError, match=says) as caught:
            check_nics(made, "a simulator")
        assert caught.value.key == "hosts[1].nics"
        assert caught.value.allowed == "in a simulator a NIC of one port for each GPU"
