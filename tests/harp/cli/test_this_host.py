"""``harp check --topology``: a host as a topology file that the simulator takes."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from harp.cli import check
from harp.cli.this_host import topology_text
from lab.namespace import why_unusable
from lab.veth import Net
from sim.schema import load

if TYPE_CHECKING:
    from pathlib import Path


def loaded(text: str, folder: Path):
    file = folder / "host.yaml"
    file.write_text(text)
    return load(file)


def test_the_output_is_a_topology_file(tmp_path: Path) -> None:
    result = CliRunner().invoke(check.check, ["--topology"])
    assert result.exit_code == 0
    host, = loaded(result.output, tmp_path).hosts
    assert host.count == 2


@pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
def test_cards_with_an_address_are_its_nics(tmp_path: Path) -> None:
    with Net() as net:
        here, there = net.namespace(), net.namespace()
        net.connect(here, there)
        net.connect(here, there)
        here.run("ip", "link", "add", "idle0", "type", "veth", "peer", "idle1")
        text = here.run(sys.executable, "-m", "harp.cli.main", "check", "--topology")
    host, = loaded(text, tmp_path).hosts
    assert [(nic.name, nic.rate) for nic in host.nics] == [("v1", 10e9), ("v2", 10e9)]


def test_gpus_are_named_as_the_driver_does(tmp_path: Path) -> None:
    for number, model in enumerate(["NVIDIA A100-SXM4-80GB"] * 8 + ["NVIDIA T4"]):
        folder = tmp_path / "proc/driver/nvidia/gpus" / f"0000:{number:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 20\n")
    text = topology_text(tmp_path)
    assert "gpus: {count: 8, model: A100-SXM4-80GB}   # and 1 of another model" in text
    assert loaded(text, tmp_path).hosts[0].gpus.count == 8


def test_json_is_of_the_findings() -> None:
    done = subprocess.run([sys.executable, "-m", "harp.cli.main", "check", "--topology", "--json"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--topology prints YAML" in done.stderr
