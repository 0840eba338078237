"""The command line of `python -m bench`, and the list of its rows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.__main__ import SUBJECTS, main, subject
from bench.rows import Mistake, Row, select
from tests.support import ROOT
from tests.support.html_pages import Page


def test_help_lists_subjects_without_loading_them():
    done = subprocess.run([sys.executable, "-X", "importtime", "-m", "bench", "--help"],
                          capture_output=True, text=True, check=True, cwd=ROOT)
    assert all(f"  {name} " in done.stdout for name in SUBJECTS)
    assert "numpy" not in done.stderr


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_subject_has_rows_and_the_common_options(name):
    assert all(isinstance(row, Row) and row.id == key for key, row in subject(name).rows.items())
    shown = CliRunner().invoke(main, [name, "--help"])
    assert shown.exit_code == 0
    common = ("--only", "--json", "--save", "--show", "--html")
    assert all(option in shown.output for option in common)


def test_the_readme_lists_all_rows():
    listed = CliRunner().invoke(main, ["rows"]).output
    assert Path(ROOT, "bench", "README.md").read_text().endswith(listed), (
        "write it anew: the head, and the output of `python -m bench rows`")


def test_rows_become_a_page(tmp_path):
    kept = ROOT / "docs" / "results" / "stack.json"
    done = CliRunner().invoke(main, ["stack", "--show", str(kept), "--only", "mem-rtt,udp-tcp",
                                     "--html", str(tmp_path / "rows.html")])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "rows.html").read_text()
    cells = Page(text).cells
    assert cells[0][:2] == ["id", "what"]
    assert {row[0] for row in cells[1:]} == {"mem-rtt", "udp-tcp"}
    option = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])["chart-0"]
    (udp,) = [row for row in json.loads(kept.read_text()) if row["id"] == "udp-tcp"]
    assert option["yAxis"]["data"] == ["udp-tcp"]
    assert option["series"][0]["data"][0]["value"] == pytest.approx(udp["ratio"], abs=1e-4)


def test_a_page_of_another_ending_is_refused(tmp_path):
    done = CliRunner().invoke(main, ["stack", "--html", str(tmp_path / "rows.txt")])
    assert done.exit_code == 2
    assert "the name must end in one of .htm, .html" in done.stderr


def test_only_takes_ids_before_texts():
    rows = {"a": 1, "ab": 2, "b": 3}
    assert select(rows, "a") == ["a"]
    assert select(rows, "b,a") == ["b", "a"]
    assert select(rows, None) == ["a", "ab", "b"]
    with pytest.raises(Mistake, match="no row 'c'; there are a, ab, b"):
        select(rows, "c")
