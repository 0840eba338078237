"""``harp plan --files``: what launchers and NCCL read, each held to its reader's own rules.

NCCL's rules of its XML files are stated here once more, after the parsers in src/graph/xml.cc,
topo.cc and search.cc of NVIDIA/nccl 2.30.7: which elements lie in which, and which attributes they
must have.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
import yaml
from click.testing import CliRunner

from harp.cli.main import harp
from harp.collectives.tuning import Communicator, Row, Tuning
from harp.routing.deployment import Deployment
from tests.support.cluster_files import topology, write_job

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FABRIC = {"template": "leaf-spine", "leaves": 2, "spines": 4}
LEAVES_APART = {"devices": [{"name": name} for name in ("a", "b", "up")],
                "links": [*({"from": f"h-{host}/eth0", "to": "ab"[host % 2]} for host in range(4)),
                          {"from": "a", "to": "up"}, {"from": "b", "to": "up"}]}
CHILDREN = {"system": {"cpu"}, "cpu": {"pci", "nic"}, "pci": {"pci", "gpu", "nic", "pcilink"},
            "nic": {"net"}, "gpu": {"nvlink", "c2c"}, "graphs": {"graph"}, "graph": {"channel"},
            "channel": {"net", "gpu"}}
NEEDED = {"system": {"version"}, "cpu": {"numaid", "arch"}, "graphs": {"version"},
          "pci": {"busid", "class", "link_speed", "link_width"}, "gpu": {"dev", "sm", "gdr"},
          "net": {"name"}, "nvlink": {"target", "count", "tclass"},
          "graph": {"id", "pattern", "crossnic", "nchannels", "speedintra", "speedinter",
                    "typeintra", "typeinter", "samechannels"}}
LINK_TYPES = {"LOC", "NVL", "NVB", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS"}
DUMP = """<system version="1">
  <cpu host_hash="0x1234" numaid="0" affinity="ffff" arch="x86_64" vendor="GenuineIntel"
       familyid="6" modelid="85">
    <pci busid="0000:00:1e.0" class="0x030200" vendor="0x10de" device="0x1db1"
         link_speed="8.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="70" rank="3" gdr="0"><nvlink target="0000:00:1d.0" count="2"
        tclass="0x030200"/></gpu>
    </pci>
    <nic><net name="eth0" dev="0" latency="0.000000" speed="10000" port="0" guid="0x0" maxconn="9"
              gdr="0"/><net name="docker0" dev="1" speed="10000"/></nic>
  </cpu>
</system>
"""


def check_nccl_xml(text: str) -> ElementTree.Element:
    """Read a file as NCCL does, and refuse what it would."""
    # Its reader takes one space before an attribute, none before the end, and knows no entities.
    tags = re.compile(r' *(<\w+( \w+="[^"&<>]*")*/?>|</\w+>)')
    assert all(tags.fullmatch(line) for line in text.splitlines())
    root = ElementTree.fromstring(text)
    assert root.get("version") == "1"
    for node in root.iter():
        assert {child.tag for child in node} <= CHILDREN.get(node.tag, set()), node.tag
        if root.tag == "system" or node.tag not in {"net", "gpu"}:
            assert NEEDED.get(node.tag, set()) <= set(node.attrib), node.attrib
        assert len(node.attrib) <= 16
        assert all(len(value) < 255 for value in node.attrib.values())
        assert not (node.text or "").strip()
    return root


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Path]:
    def made(*, gpus: int = 2, hosts: int = 4, fabric: Any = None, nic: Any = None, cores: int = 32,
             scenario: Any = None, **keys: Any) -> Path:
        return write_job(tmp_path, topology(
            hosts=hosts, gpus=gpus, fabric=fabric or FABRIC, nic=nic, host={"cores": cores},
            scenario=scenario), **keys)
    return made


def run(*arguments: object) -> Any:
    return CliRunner().invoke(harp, [str(argument) for argument in arguments],
                              standalone_mode=True)


def files_of(path: Path, *arguments: object) -> dict[str, str]:
    folder = path.parent / "files"
    done = run("plan", path, "-o", path.parent / "plan.json", "--files", folder, *arguments)
    assert done.exit_code == 0, done.stderr
    return {file.name: file.read_text() for file in folder.iterdir()}


def test_every_launcher_has_the_hosts_in_the_plan_s_order(job: Callable[..., Path]) -> None:
    path = job(fabric=LEAVES_APART, order="near")
    files = files_of(path)
    order = ["h-0", "h-2", "h-1", "h-3"]
    assert files["hostfile.openmpi"].split() == [word for host in order
                                                 for word in (host, "slots=2")]
    assert files["hostfile.mpich"].split() == [f"{host}:2" for host in order]
    assert re.findall(r"(\S+) --node-rank=(\d)", files["torchrun.txt"]) == [
        (host, str(node)) for node, host in enumerate(order)]
    ranks = re.findall(r"^rank (\d+)=(\S+) slot=(\S+)$", files["rankfile.openmpi"], re.MULTILINE)
    plan = json.loads((path.parent / "plan.json").read_text())
    assert [(int(rank), host) for rank, host, _ in ranks] == [
        (rank["rank"], rank["host"]) for rank in plan["ranks"]]
    config = yaml.safe_load(files["ranks.kubernetes.yaml"])
    assert (config["apiVersion"], config["kind"]) == ("v1", "ConfigMap")
    assert config["data"] == {host: str(node) for node, host in enumerate(order)}
    assert config["metadata"]["annotations"]["harp/fabric"] == plan["fabric"]


@pytest.mark.parametrize(("gpus", "cores"), [(1, 32), (3, 32), (2, 2), (4, 2)])
def test_ranks_share_the_cores_of_their_host(job: Callable[..., Path], gpus: int,
                                             cores: int) -> None:
    lines = files_of(job(gpus=gpus, cores=cores))["rankfile.openmpi"].splitlines()
    slots = [line.partition("slot=")[2].split("-") for line in lines if "=h-1 " in line]
    taken = [core for slot in slots for core in range(int(slot[0]), int(slot[-1]) + 1)]
    assert len(slots) == gpus
    assert set(taken) == set(range(cores))
    assert len(taken) == max(gpus, cores)


def test_the_environment_is_the_plan_s_and_has_the_speed(job: Callable[..., Path]) -> None:
    path = job(paths=2)
    lines = dict(line.split("=", 1) for line in files_of(path)["nccl.env"].splitlines())
    plan = Deployment.from_json((path.parent / "plan.json").read_text())
    assert {name: lines[name] for name in plan.settings} == plan.settings
    assert lines["HARP_SPEED"] == "100000"
    assert "NCCL_TOPO_FILE" not in lines


def test_a_topology_has_the_nics_speeds_and_nothing_else_new(job: Callable[..., Path],
                                                             tmp_path: Path) -> None:
    dump = tmp_path / "dump.xml"
    dump.write_text(DUMP)
    files = files_of(job(latency="12.5us"), "--topo-dump", dump)
    root = check_nccl_xml(files["topology.xml"])
    before = {(node.tag, name): value for node in ElementTree.fromstring(DUMP).iter()
              for name, value in node.attrib.items() if node.get("name") != "docker0"}
    after = {(node.tag, name): value for node in root.iter()
             for name, value in node.attrib.items() if node.get("name") != "docker0"}
    changed = {key: after.get(key) for key in before | after if before.get(key) != after.get(key)}
    assert changed == {("net", "speed"): "100000", ("net", "latency"): "12.5",
                       ("gpu", "rank"): None}
    assert "NCCL_TOPO_FILE=/etc/harp/topology.xml" in files["nccl.env"].splitlines()
    files = files_of(job(), "--topo-dump", dump)
    assert 'latency="0.000000"' in files["topology.xml"]


@pytest.mark.parametrize(("gpus", "nics", "channels"), [(1, 1, 2), (4, 1, 2), (8, 4, 8), (4, 2, 3)])
def test_rings_of_a_host_visit_every_gpu_and_enter_near_their_nic(
        job: Callable[..., Path], gpus: int, nics: int, channels: int) -> None:
    path = job(gpus=gpus, nic={"count": nics}, scenario={"channels": channels},
               fabric={"template": "rail", "hosts_per_leaf": 2, "spines": 2})
    graph, = check_nccl_xml(files_of(path)["graph.xml"])
    assert (graph.get("id"), graph.get("pattern"), graph.get("nchannels")) == (
        "0", "4", str(channels))
    assert {graph.get("typeintra"), graph.get("typeinter")} <= LINK_TYPES
    for number, channel in enumerate(graph):
        first, *inner, last = channel
        assert [first.tag, last.tag] == ["net", "net"]
        assert first.get("dev") == last.get("dev") == f"{number % nics:x}"
        devices = [int(gpu.get("dev", ""), 16) for gpu in inner]
        assert sorted(devices) == list(range(gpus))
        assert devices[0] * nics // gpus == number % nics
    rate = float(graph.get("speedinter", "")) * channels
    assert rate <= nics * 12.5 + 1e-3 or channels % nics


def test_a_tuning_table_becomes_part_of_the_plan(job: Callable[..., Path], tmp_path: Path) -> None:
    table = Tuning((Communicator(8, 4, (Row("AllReduce", 0, 99, "Ring", "LL"),)),))
    (tmp_path / "tuning.json").write_text(table.to_json())
    path = job(tuning="tuning.json")
    done = run("plan", path)
    assert done.exit_code == 0, done.stderr
    plan = Deployment.from_json(done.stdout)
    assert plan.tuning == table
    assert plan.to_json() == done.stdout
    (tmp_path / "tuning.json").write_text("{}")
    done = run("plan", path)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "tuning.json is not a tuning table: its format is None" in done.stderr


MISTAKES = {
    "<a>": "it is no XML", "<graphs/>": "it begins with <graphs>",
    '<system version="1"><cpu/></system>': "it has no net 'eth0', only none",
    DUMP.replace("eth0", "ens5"): "it has no net 'eth0', only ens5, docker0",
    DUMP.replace("docker0", "a&amp;b"): "<net> has a value that NCCL cannot read: 'a&b'",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_file_that_is_no_dump_is_one_sentence(job: Callable[..., Path], tmp_path: Path,
                                                text: str) -> None:
    dump = tmp_path / "dump.xml"
    dump.write_text(text)
    done = run("plan", job(), "--files", tmp_path / "files", "--topo-dump", dump)
    assert (done.exit_code, done.stdout) == (2, "")
    assert MISTAKES[text] in done.stderr
    assert not (tmp_path / "files").exists()
    done = run("plan", job(), "--topo-dump", dump)
    assert "--topo-dump needs --files" in done.stderr
