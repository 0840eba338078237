"""NCCL's topology file: hosts that it describes, InfraGraph's reader beside ours, wrong files."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from infragraph.translators.nccl_translator import run_nccl_parser

from sim.convert import main
from sim.formats.nccl_topology import MODEL_OF_DEVICE
from sim.schema import load
from sim.schema.gpu_kinds import kind_of, memory_of
from tests.support.levels import draws

if TYPE_CHECKING:
    from pathlib import Path

    from sim.schema.topology_model import Topology


def host(*, sm: int = 90, device: str = "0x2330", links: int = 18, speed: int = 400_000,
         nets: int = 2) -> str:
    """Two NUMA nodes, each with two GPUs and NICs behind a PCIe switch, as NCCL dumps them."""
    lines = ['<system version="1">']
    for node in range(2):
        lines += [f'  <cpu host_hash="0x1" numaid="{node}" affinity="ffff" arch="x86_64" '
                  'vendor="GenuineIntel" familyid="6" modelid="143">',
                  f'    <pci busid="0000:{node}0:00.0" class="0x060400" vendor="0x1000" '
                  'device="0xc030" link_speed="32.0 GT/s PCIe" link_width="16">']
        for number in range(2):
            dev = 2 * node + number
            lines += [f'      <pci busid="0000:{node}{1 + number}:00.0" class="0x030200" '
                      f'vendor="0x10de" device="{device}" link_speed="32.0 GT/s PCIe" '
                      'link_width="16">',
                      f'        <gpu dev="{dev}" sm="{sm}" rank="{dev}" gdr="1">',
                      *([f'          <nvlink target="0000:c{dev}:00.0" count="{links}" '
                         'tclass="0x068000"/>'] if links else []), "        </gpu>", "      </pci>"]
        for number in range(nets):
            dev = nets * node + number
            lines += [f'      <pci busid="0000:{node}{5 + number}:00.0" class="0x020000" '
                      'vendor="0x15b3" device="0x1021" link_speed="32.0 GT/s PCIe" '
                      'link_width="16">', "        <nic>",
                      f'          <net name="mlx5_{dev}" dev="{dev}" latency="0.000000" '
                      f'speed="{speed}" port="1" guid="0x{dev}" maxconn="131072" gdr="1"/>',
                      "        </nic>", "      </pci>"]
        lines += ["    </pci>", "  </cpu>"]
    return "\n".join([*lines, "</system>\n"])


def converted(folder: Path, text: str, *options: str) -> Topology:
    (folder / "n.xml").write_text(text)
    found = CliRunner().invoke(main, [str(folder / "n.xml"), str(folder / "t.yaml"), *options])
    assert found.exit_code == 0, found.output
    return load(folder / "t.yaml")


def test_a_host_is_read(tmp_path: Path) -> None:
    topology = converted(tmp_path, host(), "--hosts", "16")
    (group,) = topology.hosts
    assert (group.count, group.gpus.count, group.gpus.model) == (16, 4, "H100")
    assert group.nvlink is not None
    assert group.nvlink.rate == pytest.approx(18 * 20.6e9 * 8)
    assert group.nic_names == tuple(f"nic{number}" for number in range(4))
    assert group.nics[0].rate == 400e9
    assert group.pcie is not None
    assert group.pcie.rate == pytest.approx(32e9 * 16 * 128 / 130)
    assert group.affinity is not None
    assert group.affinity.gpu_nodes == group.affinity.nic_nodes == (0, 0, 1, 1)


def test_infragraphs_reader_finds_as_many_parts(tmp_path: Path) -> None:
    (group,) = converted(tmp_path, host()).hosts
    run_nccl_parser("host", str(tmp_path / "n.xml"), str(tmp_path / "device.json"), "json")
    text = (tmp_path / "device.json").read_text()
    device = json.loads(text)
    device = device["devices"][0] if "devices" in device else device
    counts: dict[str, int] = {}
    for each in device["components"]:
        counts[each["choice"]] = counts.get(each["choice"], 0) + each["count"]
    assert counts["xpu"] == group.gpus.count
    assert counts["nic"] == len(group.nic_names)
    assert counts["cpu"] == group.numa_nodes


@pytest.mark.parametrize(("keys", "options", "nvlink_gbs"), [
    ({"links": 0}, (), None), ({"sm": 70, "device": "", "links": 6}, (), 120),
    ({"sm": 80, "links": 12}, ("--gpu", "A100"), 240), ({}, ("--nvlink", "450GB/s"), 450),
    ({}, ("--nvlink", "none"), None)])
def test_the_gpus_own_fabric_is_nccls_or_the_users(
        tmp_path: Path, keys: dict[str, Any], options: tuple[str, ...],
        nvlink_gbs: float | None) -> None:
    (group,) = converted(tmp_path, host(**keys), *options).hosts
    assert (None if group.nvlink is None else group.nvlink.rate / 8e9) == (
        None if nvlink_gbs is None else pytest.approx(nvlink_gbs))


@pytest.mark.parametrize(("sm", "device", "model", "gib"), [
    (90, "0x2330", "H100", 80), (90, "0x2331", "H100 PCIe", 80), (90, "0x2335", "H200", 140),
    (80, "0x20b0", "A100 40GB", 40), (80, "0x20b2", "A100 80GB", 80), (89, "0x26b9", "L40S", 45),
    (100, "0x2941", "GB200", 185), (90, "0x2339", "H100", 80), (70, "", "V100", 32)])
def test_a_gpu_is_known_by_its_device_or_else_by_its_compute_capability(
        tmp_path: Path, sm: int, device: str, model: str, gib: int) -> None:
    (group,) = converted(tmp_path, host(sm=sm, device=device)).hosts
    assert group.gpus.model == model
    memory = memory_of(model)
    assert memory is not None
    assert round(memory / 2**30) == pytest.approx(gib, abs=1)


def test_every_device_is_of_a_kind_with_a_data_sheet() -> None:
    assert all(kind_of(model) for known in MODEL_OF_DEVICE.values() for model in known.values())


def of_rccl(device: str = "0x74a1", gcn: str = "gfx942") -> str:
    """As RCCL dumps a host of AMD's: version 2, each GPU with links to the three others."""
    text = host(device=device, links=0).replace('version="1"', 'version="2"')
    text = text.replace("0x10de", "0x1002").replace('rank=', f'gcn="{gcn}" arch="38911" rank=')
    links = "".join(f'<xgmi target="0000:c{peer}:00.0" count="1" tclass="0x038000"/>'
                    for peer in range(3))
    return text.replace("        </gpu>", f"          {links}\n        </gpu>")


@pytest.mark.parametrize(("device", "gcn", "options", "model", "link_gbs"), [
    ("0x74a1", "gfx942", (), "MI300X", 48), ("0x75a3", "gfx950", (), "MI355X", 48),
    ("0x740c", "910", (), "MI250X", 36), ("0x740c", "gfx90a:sramecc+:xnack-", (), "MI250X", 36),
    ("0x738c", "gfx908", ("--gpu", "MI250X"), "MI250X", 24)])
def test_a_host_of_rccl_is_read(tmp_path: Path, device: str, gcn: str, options: tuple[str, ...],
                                model: str, link_gbs: float) -> None:
    (group,) = converted(tmp_path, of_rccl(device, gcn), *options).hosts
    assert (group.gpus.count, group.gpus.model) == (4, model)
    assert group.nvlink is not None
    assert group.nvlink.rate == pytest.approx(3 * link_gbs * 8e9)
    assert group.affinity is not None
    assert group.affinity.gpu_nodes == (0, 0, 1, 1)


def test_a_host_of_one_gpu_may_lack_a_hash(tmp_path: Path) -> None:
    text = re.sub(' host_hash="[^"]*"', "", host())
    assert converted(tmp_path, text).hosts == converted(tmp_path, host()).hosts


def test_nics_of_two_speeds_are_two_kinds(tmp_path: Path) -> None:
    text = host().replace('speed="400000"', 'speed="100000"', 1)
    (group,) = converted(tmp_path, text).hosts
    assert [(nic.count, nic.rate) for nic in group.nics] == [(1, 100e9), (3, 400e9)]


def test_a_device_that_nccl_does_not_keep_is_left_out(tmp_path: Path) -> None:
    text = host().replace('dev="3" latency', 'dev="3" keep="0" latency')
    (group,) = converted(tmp_path, text).hosts
    assert len(group.nic_names) == 3


WRONG = {
    "no XML": ("<system version='1'><cpu>", (), "is no XML"),
    "another version": ('<system version="3"></system>', (), "version='3'"),
    "AMD's GPU that may be several": (of_rccl("0x74a0"), (), "GPUs of gfx942 is not known"),
    "a GPU that is there twice": (host().replace('gpu dev="1"', 'gpu dev="0"'), (),
                                  "two GPUs have the dev 0"),
    "two hosts": (host().replace("0x1", "0x2", 1), (), "the CPUs are of 2 hosts"),
    "an entity": ('<?xml version="1.0"?><!DOCTYPE s [<!ENTITY a "b">]><system version="1"/>', (),
                  "a document type or entity"),
    "no GPU": ('<system version="1"><cpu numaid="0"/></system>', (), "the file has no GPU"),
    "no NIC": (host(nets=0), (), "the file has no network device"),
    "a GPU that may be several": (host(sm=80, device="0xfffe"), (), "GPUs of sm 80 is not known"),
    "two kinds of GPUs": (host().replace("0x2330", "0x2335", 1), (), "the GPUs differ in device"),
    "an unknown GPU": (host(), ("--gpu", "H1000"), "did you mean"),
    "a wrong speed": (host().replace('speed="400000"', 'speed="fast"'), (), "'fast' as speed"),
    "no speed": (host(speed=0), (), "the speed 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, case: str) -> None:
    text, options, says = WRONG[case]
    (tmp_path / "n.xml").write_text(text)
    found = CliRunner().invoke(main, [str(tmp_path / "n.xml"), str(tmp_path / "t.yaml"), *options])
    assert found.exit_code == 2, found.output
    assert says in found.output
    assert found.output.count("\n") == 1
    assert not (tmp_path / "t.yaml").exists()


SPOTS = [match.span() for match in re.finditer('"[^"]*"', host())]


@settings(max_examples=draws(150), deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spot=st.sampled_from(SPOTS), value=st.one_of(
    st.text(st.characters(min_codepoint=32, exclude_categories=["Cs"]), max_size=8),
    st.integers().map(str),
    st.sampled_from(["9" * 400, "9" * 400 + " GT/s", "nan", "1e999", "-1", "0"])))
def test_any_value_of_any_attribute_is_a_host_or_one_sentence(
        tmp_path: Path, spot: tuple[int, int], value: str) -> None:
    text = host()
    (tmp_path / "n.xml").write_text(text[:spot[0]] + quoteattr(value) + text[spot[1]:])
    found = CliRunner().invoke(main, [str(tmp_path / "n.xml"), str(tmp_path / "t.yaml")])
    assert found.exit_code in {0, 2}, found.exception
    assert found.exit_code == 0 or found.stderr.count("\n") == 1


def test_what_editors_put_before_the_first_element_is_read(tmp_path: Path) -> None:
    again = converted(tmp_path, f"\ufeff<!-- of node-1 -->\n{host()}")
    assert again.hosts == converted(tmp_path, host()).hosts


def test_xml_of_another_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "n.xml").write_text("<html><body/></html>")
    found = CliRunner().invoke(main, [str(tmp_path / "n.xml"), str(tmp_path / "t.yaml")])
    assert found.exit_code == 2
    assert ("found <html version=nothing>; allowed: <system version=\"1\">, or RCCL's"
            in found.stderr)
