"""``python -m sim.compare``: what changed from one file to another, and what it changes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from sim.compare import main
from tests.support.cluster_files import topology, write

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
