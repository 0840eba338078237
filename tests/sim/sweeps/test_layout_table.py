"""The table of a search of layouts."""

import pytest
import yaml

from sim.sweeps.layout_table import document, flow, print_search
from sim.sweeps.layouts import Search
from tests.sim.sweeps.test_layouts import cluster_file, tune
from tests.support.levels import long


@long
def test_the_table_names_the_fastest_and_what_was_left_out(tmp_path):
    result = tune(cluster_file(tmp_path), "--layouts", "--workers", "1", "--samples", "4")
    assert result.exit_code == 0, result.stderr
    assert "t, s: 4 samples a step" in result.stdout
    assert "The fastest: parallel: {" in result.stdout
    assert "no other one can be on this front" in result.stdout


@pytest.mark.parametrize(("value", "text"), [
    ({"tensor": 2, "sequence": True}, "{tensor: 2, sequence: true}"),
    ({"parallel": {"shard": "fsdp"}, "batch": 4}, "{parallel: {shard: fsdp}, batch: 4}"),
    ({}, "{}"), (False, "false"), (1.5, "1.5")])
def test_a_mapping_stands_in_one_line_of_yaml(value, text):
    assert flow(value) == text
    assert yaml.safe_load(text) == value


def test_a_search_that_reached_nothing_says_how_many_are_open(capsys):
    found = Search(samples=64, front=(), tried=3, refused=2, open=1200, of=1205)
    print_search(found, "t, s")
    title, text = capsys.readouterr().out.split("\n", 1)
    assert title == "t, s: 64 samples a step"
    assert " ".join(text.split()) == (
        "5 of 1,205 layouts that fit were simulated, 2 of them refused; 1,200 more might change "
        "the front: --budget raises what may be spent.")
    assert document(found, "t", "s") == {
        "version": 1, "topology": "t", "scenario": "s", "samples": 64, "layouts": 1205,
        "simulated": 3, "refused": 2, "open": 1200, "front": []}
