"""The check of simulators in which a GPU and its NIC are one node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.testing import CliRunner

from sim.convert import main
from tests.support import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_hosts_with_fewer_nics_than_gpus_are_refused(tmp_path: Path) -> None:
    source = ROOT / "topologies" / "taco-vgg16-v100-25g.yaml"
    found = CliRunner().invoke(main, [str(source), str(tmp_path / "n.txt"), "--to", "ns3"])
    assert found.exit_code == 2
    assert "a NIC of one port for each GPU" in found.output
    assert not (tmp_path / "n.txt").exists()
