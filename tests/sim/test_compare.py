"""``python -m sim.compare``: what changed from one file to another, and what it changes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from sim.compare import main
from tests.support.cluster_files import IDEAL, topology, write

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


def compare(tmp_path: Path, old: dict[str, Any], new: dict[str, Any],
            *options: str) -> Result:
    return CliRunner().invoke(main, [str(write(tmp_path, old, "a.yaml")),
                                     str(write(tmp_path, new, "b.yaml")), *options])


def document(tmp_path: Path, old: dict[str, Any], new: dict[str, Any], *options: str,
             ) -> dict[str, Any]:
    done = compare(tmp_path, old, new, "--draws", "0", "--quiet", "--json", "-", *options)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_changed_rate_is_one_key_and_a_faster_row(tmp_path):
    found = document(tmp_path, topology(), topology(rate_bps=200e9))
    assert found["changes"] == [{"key": "hosts[h].nics[eth].rate", "before": "100000000000.0bps",
                                 "after": "200000000000.0bps"}]
    (row,) = found["rows"]
    assert row["change_pct"] > 0
    assert row["change_pct"] == pytest.approx(
        100 * (row["after"]["images_per_s"] / row["before"]["images_per_s"] - 1), rel=1e-3)


@pytest.mark.parametrize("new", [
    {"fabric": {"template": "single-switch", "latency": "0us"}},
    {"seed": 1, "faults": []},
    {"description": "other words", "name": "other"},
    {"scenarios": [{"channels": 1, "allreduce": "ring", "stack": "ideal", "name": "s"}]}])
def test_equal_meanings_are_no_change(tmp_path, new):
    old = topology(fabric={"template": "single-switch", "latency": "0s"})
    done = compare(tmp_path, old, topology() | new, "--draws", "0")
    assert "The files mean the same." in done.stdout
    assert "=" in done.stdout.splitlines()[-1]


def test_scenarios_are_matched_by_name_whatever_their_order(tmp_path):
    one, two = ({"name": name, "stack": "ideal", "allreduce": kind, "channels": 1}
                for name, kind in (("one", "ring"), ("two", "tree")))
    three = {"name": "three", "stack": "ideal"}
    found = document(tmp_path, topology(scenarios=[one, two]),
                     topology(scenarios=[three, two | {"allreduce": "ring"}]))
    assert [(each["key"], each["before"], each["after"]) for each in found["changes"]] == [
        ("scenarios[one]", "{...}", None), ("scenarios[two].allreduce", "tree", "ring"),
        ("scenarios[three]", None, "{...}")]
    assert [(row["name"], row["before"] is None, row["after"] is None)
            for row in found["rows"]] == [
        ("three", True, False), ("two", False, False), ("one", False, True)]


def test_a_default_that_is_left_out_is_shown(tmp_path):
    changed = topology(scenario={"streams": 2})
    found = document(tmp_path, topology(), changed)
    assert found["changes"] == [{"key": "scenarios[s].streams", "before": "1", "after": "2"}]


def slow(value: str) -> dict[str, Any]:
    return {"ideal": IDEAL | {"threads": 1, "cost_per_byte": {
        "value": value, "low": "0.5ns", "high": "2ns", "confidence": "assumed", "source": "x"}}}


def test_a_change_within_both_intervals_is_not_sure(tmp_path):
    near = document(tmp_path, topology(stacks=slow("1ns")), topology(stacks=slow("1.05ns")),
                    "--draws", "8")
    far = document(tmp_path, topology(stacks=slow("1ns")), topology(), "--draws", "8")
    assert near["rows"][0]["sure"] is False
    assert far["rows"][0]["sure"] is None  # without a cost there is no interval
    done = compare(tmp_path, topology(stacks=slow("1ns")), topology(stacks=slow("1.05ns")),
                   "--draws", "8")
    assert "~ -" in done.stdout
    assert "P10 to P90 of the two overlap" in done.stdout


def test_money_stands_beside_the_rows(tmp_path):
    old = topology() | {"prices": {"hosts": {"h": 10.0}, "samples": 1e6}}
    new = topology(rate_bps=400e9) | {"prices": {"hosts": {"h": 12.0}, "samples": 1e6}}
    (row,) = document(tmp_path, old, new)["rows"]
    assert (row["before"]["cost_day"], row["after"]["cost_day"]) == (480, 576)
    assert row["after"]["cost_goal"] == pytest.approx(
        24 * 1e6 / row["after"]["images_per_s"] / 3600)
    assert "USD before" in compare(tmp_path, old, new, "--draws", "0").stdout


def test_set_changes_both_and_scenario_chooses(tmp_path):
    names = [{"name": name, "stack": "ideal"} for name in ("a", "b")]
    found = document(tmp_path, topology(scenarios=names), topology(scenarios=names),
                     "--scenario", "b", "--set", "workload.batch=7")
    assert [row["name"] for row in found["rows"]] == ["b"]
    assert found["changes"] == []


@pytest.mark.parametrize(("options", "says"), [
    (("--scenario", "z"), "'z' is not a known scenario"),
    (("--draws", "-1"), "draws"),
    (("--json", "/nowhere/x.json"), "--json"),
])
def test_wrong_options_are_one_sentence(tmp_path, options, says):
    done = compare(tmp_path, topology(), topology(), *options)
    assert done.exit_code == 2
    assert says in done.output


def test_a_file_that_is_not_there_is_named(tmp_path):
    done = CliRunner().invoke(main, [str(write(tmp_path, topology())), "nowhere.yaml"])
    assert done.exit_code == 2
    assert "nowhere.yaml" in done.output
