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
from harp.cli.standalone import run_program
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


LACKING = '[{"id": "mem-rtt", "value": 2.4}]'


@pytest.mark.parametrize(("words", "sentence"), [
    ("stak", "there is no subject 'stak'; did you mean 'stack'?"),
    ("stack --bogus", "No such option"),
    ("stack --only nosuch", "there is no row 'nosuch'; there are"),
    ("stack --show {missing}", "there is no such file, or it has no rows"),
    ("stack --show {binary}", "cannot be read: it is not text"),
    ("stack --show {folder}", "cannot be read: is a directory"),
    ("stack --show {deep}", "is no file of rows: it is no JSON of ours: it is nested too deeply"),
    ("stack --show {wrong}", "is no file of rows: all of it is {}: a list is possible"),
    ("stack --show {lacking}", "a row of it lacks 'target'"),
    ("stack --save {missing}/x.json", "there is no directory"),
    ("stack --html x.txt", "the name must end in one of .htm, .html")])
def test_a_mistake_is_one_sentence(tmp_path, monkeypatch, capfd, words, sentence):
    files = {"missing": None, "folder": None, "binary": b"\xff\xfe\0", "deep": b"[" * 100_000,
             "wrong": b"{}", "lacking": LACKING.encode()}
    for name, data in files.items():
        if data is not None:
            (tmp_path / name).write_bytes(data)
    (tmp_path / "folder").mkdir()
    named = {name: tmp_path / name for name in files}
    monkeypatch.setattr(sys, "argv", ["bench", *words.format(**named).split()])
    with pytest.raises(SystemExit) as ended:
        run_program(main, "python -m bench")
    said = capfd.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert sentence in said


def test_only_takes_ids_before_texts():
    rows = {"a": 1, "ab": 2, "b": 3}
    assert select(rows, "a") == ["a"]
    assert select(rows, "b,a") == ["b", "a"]
    assert select(rows, None) == ["a", "ab", "b"]
    with pytest.raises(Mistake, match="no row 'c'; there are a, ab, b"):
        select(rows, "c")
