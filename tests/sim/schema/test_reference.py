"""The JSON Schema and the tables of keys, both made of the models."""

import importlib
import json
import subprocess
import sys

import pytest
import yaml
from click.testing import CliRunner

from sim.schema import reference
from sim.schema.__main__ import main
from sim.schema.base import Model
from sim.schema.reference import fill, json_schema
from tests.sim.schema.test_load import DATA, SCHEMA, loaded
from tests.support import ROOT
from tests.support.json_schemas import check_schema, validate


def test_the_json_schema_is_valid_and_shipped_as_printed():
    check_schema(SCHEMA)
    printed = subprocess.run([sys.executable, "-m", "sim.schema"], capture_output=True, text=True,
                             check=True).stdout
    assert json.loads(printed) == SCHEMA
    assert (ROOT / "topologies" / "schema.json").read_text() == printed


def test_a_page_that_does_not_exist_is_a_sentence():
    done = CliRunner().invoke(main, ["no-such-page.md"])
    assert done.exit_code == 2
    assert "File 'no-such-page.md' does not exist" in done.stderr


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
