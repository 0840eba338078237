"""Good files: every quantity becomes its SI value, and what is written back means the same."""

import json
from pathlib import Path

import pytest
import yaml

from sim.schema import Topology, load
from sim.schema.reference import json_schema
from sim.schema.scenario_keys import LinkDown
from tests.support import ROOT
from tests.support.json_schemas import validate

DATA = ROOT / "tests" / "data"
GOOD = sorted((DATA / "good").glob("*.yaml")) + sorted((ROOT / "topologies").glob("*.yaml"))
SMALL = (DATA / "good" / "small.yaml").read_text()
SCHEMA = json_schema()


def loaded(tmp_path: Path, text: str) -> Topology:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    return load(path)


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_good_file_round_trips_and_satisfies_the_json_schema(tmp_path, path):
    topology = load(path)
    text = topology.model_dump_json(by_alias=True, exclude_unset=True)
    validate(json.loads(text), SCHEMA)
    validate(yaml.safe_load(path.read_text()), SCHEMA)
    assert loaded(tmp_path, text).model_dump() == topology.model_dump()


def test_quantities_are_plain_si_numbers():
    topology = load(DATA / "good" / "everything.yaml")
    host = topology.hosts[0]
    assert host.nvlink is not None
    assert (host.gpus.effective, host.nvlink.rate, host.nvlink.latency) == (23.4e12, 1.04e12, 5e-6)
    assert topology.hosts[1].nvlink is None
    vpc = topology.vpc
    assert vpc is not None
    assert vpc.burst is not None
    assert (vpc.packet_rate, vpc.burst.bucket, vpc.mtu) == (2.5e6, 10**9, 1500)
    scenario = topology.scenarios[0]
    assert (scenario.fusion.threshold, scenario.fusion.cycle) == (128 * 2**20, 5e-3)
    assert topology.expect[0].within == 0.025
    down = topology.faults[0]
    assert isinstance(down, LinkDown)
    assert (down.at, down.duration, down.detection, down.recovery) == (0.1, 1.0, 0.02, 0.005)


@pytest.mark.parametrize("word", ["on", "off", "yes", "no", "2024-01-01", "12:30:00", "0x10", "1_0",
                                  "0b1", "=", "null1", "0o7"])
def test_what_yaml_1_1_would_turn_into_something_else_stays_text(tmp_path, word):
    text = SMALL.replace("model: V100", f"model: {word}")
    assert loaded(tmp_path, text).hosts[0].gpus.model == word


def test_a_merged_mapping_gives_way_to_the_mapping_s_own_keys(tmp_path):
    nics = "&nic {name: eth, rate: 25Gbps}, {name: ib, <<: *nic}, {<<: [*nic, *nic], name: x}"
    topology = loaded(tmp_path, SMALL.replace("{name: eth, rate: 25Gbps}", nics))
    assert [nic.name for nic in topology.hosts[0].nics] == ["eth", "ib", "x"]
    assert {nic.rate for nic in topology.hosts[0].nics} == {25e9}


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())
    assert load(path).name == "small"
