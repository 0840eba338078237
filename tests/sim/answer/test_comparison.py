"""Differences between two topology files and their answers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.test_compare import compare, document
from tests.support.cluster_files import IDEAL, topology


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
