"""JSON and CSV, read back with the standard readers, and docs/use/output.md against the files."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from sim.records.results import Report
from sim.report.export import collective_csv, collective_json, report_csv, report_json
from tests.support import ROOT
from tests.support.report_samples import ORIGIN, collective, taco, two_jobs

DOCS = ROOT / "docs" / "use" / "output.md"


def documented(section: str) -> set[str]:
    """The keys in the first column of a section's table."""
    text = DOCS.read_text(encoding="utf-8").split(f"## {section}\n", 1)[1].split("\n## ")[0]
    return {key for line in text.splitlines() if line.startswith("| `")
            for key in re.findall(r"`([^`]+)`", line.split("|")[1])}


def paths(value: Any, prefix: str = "") -> set[str]:
    """All keys of a JSON value, as ``scenarios[].expect.kind``."""
    if isinstance(value, dict):
        below = (paths(item, f"{prefix}.{key}" if prefix else key) for key, item in value.items())
        return ({f"{prefix}.{key}" if prefix else key for key in value}).union(*below)
    if isinstance(value, list):
        return set().union(*(paths(item, f"{prefix}[]") for item in value))
    return set()


def test_json_holds_every_row() -> None:
    report = taco()
    document = json.loads(report_json(report))
    assert (document["version"], document["topology"], document["seed"]) == (2, report.topology, 1)
    assert len(document["scenarios"]) == len(report.scenarios)
    for written, row in zip(document["scenarios"], report.scenarios, strict=True):
        assert (written["name"], written["gpus"]) == (row.name, row.gpus)
        assert written["images_per_s"] == pytest.approx(row.images_per_s, rel=1e-8)
        assert sum(written["breakdown_ms"].values()) == pytest.approx(written["step_ms"], rel=1e-7)
        assert (written["expect"] is None) == (row.expect is None)
        if row.expect is not None:
            assert written["error_pct"] == pytest.approx(
                100 * (row.images_per_s / row.expect.images_per_s - 1), abs=1e-6)
            # The figure's own step, were its compute the simulated one.
            step_ms = written["expect"]["exposed_ms"] + written["breakdown_ms"]["compute"]
            assert step_ms / written["step_ms"] == pytest.approx(
                row.images_per_s / row.expect.images_per_s)


@pytest.mark.parametrize("text", [report_json(taco()), collective_json(collective())])
def test_json_floats_have_nine_digits_and_a_newline_ends_the_file(text: str) -> None:
    assert text.endswith("}\n")
    for number in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", text):
        digits = number.split("e")[0].replace(".", "").lstrip("-0")
        assert len(digits.rstrip("0")) <= 9, number


def test_json_and_csv_of_equal_reports_are_equal_bytes() -> None:
    assert report_json(taco()) == report_json(taco())
    assert report_csv(taco()) == report_csv(taco())


def test_the_last_bits_of_a_float_do_not_show() -> None:
    row = taco().scenarios[0]
    near = replace(row, images_per_s=math.nextafter(row.images_per_s, math.inf))
    assert report_json(Report("t", 1, (row,))) == report_json(Report("t", 1, (near,)))


def test_infinity_is_null_in_json_and_empty_in_csv() -> None:
    stuck = replace(taco().scenarios[0], images_per_s=0.0, step_s=math.inf)
    report = Report("t", 1, (stuck,))
    assert json.loads(report_json(report))["scenarios"][0]["step_ms"] is None
    assert next(csv.DictReader(io.StringIO(report_csv(report))))["step_ms"] == ""


def test_csv_says_what_json_says() -> None:
    report = Report("t", 1, taco().scenarios + two_jobs().scenarios)
    rows = list(csv.DictReader(io.StringIO(report_csv(report))))
    scenarios = json.loads(report_json(report))["scenarios"]
    assert len(rows) == len(scenarios)
    for row, scenario in zip(rows, scenarios, strict=True):
        assert None not in row
        for key in ("name", "gpus", "job", "images_per_s", "step_ms"):
            assert row[key] == str(scenario[key])
        for part, value in scenario["breakdown_ms"].items():
            assert float(row[f"{part}_ms"]) == value
        expect = scenario["expect"]
        assert row["expect_exposed_ms"] == ("" if expect is None else str(expect["exposed_ms"]))
        assert row["expect_kind"] == ("" if expect is None else expect["kind"])
        assert row["notes"] == "; ".join(scenario["notes"])
        for key in ("tokens_per_s", "mfu"):
            assert row[key] == ("" if scenario[key] is None else str(scenario[key]))
        memory = scenario["memory_bytes"]
        assert row["memory_bytes"] == ("" if memory is None else str(memory["total"]))


def test_csv_keeps_names_that_hold_its_own_marks() -> None:
    name = 'a "quoted", two-line\nname'
    report = Report("t", 1, (replace(taco().scenarios[0], name=name),))
    assert next(csv.DictReader(io.StringIO(report_csv(report))))["name"] == name


def test_csv_of_nothing_is_its_header() -> None:
    assert len(report_csv(Report("t", 1, ())).splitlines()) == 1


def test_collective_files_agree() -> None:
    report = collective()
    document = json.loads(collective_json(report))
    rows = list(csv.DictReader(io.StringIO(collective_csv(report))))
    assert len(document["rows"]) == len(rows) == len(report.rows)
    for written, line in zip(document["rows"], rows, strict=True):
        assert {key: str(value) for key, value in written.items() if key in line} == {
            key: line[key] for key in written if key in line}
        assert [line[f"p{share}_busbw_gb_per_s"] for share in (10, 50, 90)] == [
            str(busbw) for busbw in written["interval"]["busbw_gb_per_s"]]
        assert line["bottleneck"] == written["limits"][0]["name"]
        assert written["algbw_gb_per_s"] == pytest.approx(
            written["size_bytes"] / written["time_us"] / 1e3)


def test_docs_list_exactly_the_keys_of_json() -> None:
    report = replace(two_jobs(), scenarios=taco().scenarios + two_jobs().scenarios, origin=ORIGIN)
    assert documented("JSON") == paths(json.loads(report_json(report)))
    timed = collective()
    timed = replace(timed, rows=(*timed.rows, replace(timed.rows[0], choice="tree LL")))
    assert documented("JSON of `--collective`") == paths(json.loads(collective_json(timed)))


def test_docs_list_exactly_the_columns_of_csv() -> None:
    header = report_csv(Report("t", 1, ())).strip().split(",")
    assert documented("CSV") == set(header)


def test_the_example_in_the_docs_has_the_shape_of_what_is_written() -> None:
    example = json.loads(re.search(r"```json\n(.*?)```", DOCS.read_text(encoding="utf-8"),
                                   re.DOTALL).group(1))  # type: ignore[union-attr]
    row = next(row for row in taco().scenarios if row.interval is not None)
    written = json.loads(report_json(Report("t", 1, (row,), (), ORIGIN)))
    assert paths(example) == paths(written)
    assert [*example["scenarios"][0]] == [*written["scenarios"][0]]
