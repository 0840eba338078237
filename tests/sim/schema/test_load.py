"""Good files: every quantity becomes its SI value, and what is written back means the same."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from harp.lightcc.settings import LightSettings
from sim.schema import Problem, Topology, TopologyError, load, reference
from sim.schema.base import Model
from sim.schema.reference import fill, json_schema
from sim.schema.scenario_keys import LinkDown, link_ends
from tests.support import ROOT
from tests.support.json_schemas import check_schema, validate

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


def test_names_rows_and_counts_of_a_cluster(tmp_path):
    topology = load(DATA / "good" / "everything.yaml")
    assert topology.host_names == ("a-0", "b-0")
    assert topology.hosts[0].nic_names == ("eth0", "eth1")
    assert (topology.gpu_count, topology.gpu_totals) == (16, (8, 16))
    assert topology.rows(topology.scenarios[0]) == (("one", 8), ("two", 8))
    small = loaded(tmp_path, SMALL)
    assert small.rows(small.scenarios[0]) == ((None, 16),)


def test_light_settings_are_those_that_lightcc_reads():
    scenario = load(DATA / "good" / "everything.yaml").scenarios[0]
    settings = LightSettings.from_env(scenario.light_settings)
    assert settings.intra_size == 4
    assert settings.topk_threshold_bytes == 2097152
    assert not settings.topk_fp16


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


def test_a_topology_cannot_be_changed():
    topology = load(GOOD[0])
    with pytest.raises(ValidationError, match="frozen"):
        topology.name = "other"


def test_a_later_stage_can_point_into_the_file():
    path = DATA / "good" / "everything.yaml"
    topology = load(path)
    error = topology.error(Problem("is odd", path=("faults", 1, "link")))
    line = path.read_text().splitlines()[error.line - 1]
    assert line[error.column - 1:].startswith("a-0/eth0->leaf0,")
    assert str(error) == f"{path}:{error.line}:{error.column}: faults[1].link: is odd"


def test_one_gpu_and_fewer_gpus_than_a_group_are_fine(tmp_path):
    scenario = ("{name: tcp, stack: rdma, gpus: [1, 4, 8, 16], allreduce: light, "
                "light: {LIGHT_2D_ALLREDUCE: 1, LIGHT_INTRA_SIZE: 8}}")
    topology = loaded(tmp_path, SMALL.replace("{name: tcp, stack: kernel-tcp}", scenario))
    assert topology.gpu_counts(topology.scenarios[0]) == (1, 4, 8, 16)


@pytest.mark.parametrize(("link", "ends"), [
    ("leaf0-spine0", ("leaf0", "spine0", False)),
    ("leaf0->spine0", ("leaf0", "spine0", True)),
    ("a-0/eth0-leaf0", ("a-0/eth0", "leaf0", False)),
    ("leaf-0-a-0/eth0", ("leaf-0", "a-0/eth0", False)),
])
def test_ends_of_a_link_are_found_though_names_hold_hyphens(link, ends):
    assert link_ends(link, {"leaf0", "spine0", "a-0/eth0", "leaf-0"}) == ends


# --- the JSON Schema and the reference


def test_the_json_schema_is_valid_and_shipped_as_printed():
    check_schema(SCHEMA)
    printed = subprocess.run([sys.executable, "-m", "sim.schema"], capture_output=True, text=True,
                             check=True).stdout
    assert json.loads(printed) == SCHEMA
    assert (ROOT / "topologies" / "schema.json").read_text() == printed


def test_every_shipped_topology_names_the_schema():
    for path in (ROOT / "topologies").glob("*.yaml"):
        first = path.read_text().splitlines()[0]
        assert first == "# yaml-language-server: $schema=./schema.json", path.name


def test_every_key_of_the_json_schema_says_what_it_means():
    for part in (SCHEMA, *SCHEMA["$defs"].values()):
        mapping = next(each for each in part.get("anyOf", [part]) if "properties" in each)
        for key, value in mapping["properties"].items():
            assert value["description"].endswith("."), key


SENSE = (
    "reference-", "background-", "base-", "parameter-interval", "duplicate-", "gpus-", "group-",
    "jobs-overlap", "light-ignored", "leaves-", "clos3-", "dual-tor-", "rail-", "bond-", "burst-",
    "mtu-", "link-", "host-", "fault-", "expect-", "yaml-", "rate-zero", "rate-infinite",
    "share-too-large", "size-of-half", "factor-zero", "type-word-for-bool", "ports-without",
)
"""Bad files in which only `load` can see what is wrong."""
FORM = [path for path in sorted((DATA / "bad").glob("*.yaml")) if not path.stem.startswith(SENSE)]


@pytest.mark.parametrize("path", FORM, ids=lambda path: path.stem)
def test_the_json_schema_refuses_what_has_the_wrong_form(path):
    data = yaml.load(path.read_text(), Loader=yaml.SafeLoader)
    with pytest.raises(AssertionError):
        validate(data, SCHEMA)


def test_classes_of_the_schema_have_names_of_their_own():
    """The schema finds a class by its name, and other commands' files have classes as well."""
    for module in (ROOT / "sim" / "schema").glob("*.py"):
        importlib.import_module(f"sim.schema.{module.stem}")
    names = [model.__name__ for model in reference._models(Model) if "[" not in model.__name__]
    assert len(names) == len(set(names))


def test_classes_of_the_same_name_elsewhere_do_not_change_the_schema():
    """InfraGraph has links and devices too."""
    module = importlib.import_module("sim.formats.infragraph_schema")
    assert {module.Link.__name__, module.Device.__name__} <= {*SCHEMA["$defs"]}
    assert json_schema() == SCHEMA


def test_the_reference_in_the_docs_is_up_to_date():
    text = (ROOT / "docs" / "use" / "topology.md").read_text()
    assert fill(text) == text
    for name in SCHEMA["$defs"]:
        if not name.endswith("Parameter"):
            assert f"<!-- keys of {name} -->" in text, name


def test_the_examples_in_the_docs_load(tmp_path):
    text = (ROOT / "docs" / "use" / "topology.md").read_text()
    blocks = [block.split("```")[0] for block in text.split("```yaml\n")[1:]]
    whole = [block for block in blocks if block.startswith("name:")]
    assert whole
    for block in whole:
        loaded(tmp_path, block)


def test_an_error_is_a_value_error():
    assert issubclass(TopologyError, ValueError)
