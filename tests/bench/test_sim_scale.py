"""Rows of the subject `sim`; its figures are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bench.sim.scale_rows import ROWS
from tests.support import PATIENCE_S, ROOT


def bench(*options):
    return subprocess.run([sys.executable, "-m", "bench", "sim", *options],
                          capture_output=True, text=True, check=False, timeout=PATIENCE_S, cwd=ROOT)


@pytest.fixture(scope="module")
def rows():
    done = bench("--json", "--rows", "perm-1024,ring-1024-fluid")
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


def test_json_is_a_list_of_rows(rows):
    assert [row["id"] for row in rows] == ["perm-1024", "ring-1024-fluid"]
    for row in rows:
        assert row["unit"] == "s"
        assert 0 < row["value"] < row["command_s"]
        assert row["ok"] == (row["value"] <= row["target"])


def test_rows_say_how_they_were_solved(rows):
    for row in rows:
        assert row["folding"] == "none"
        assert "ECMP" in row["routing"]
        assert row["tolerance"] == 1e-9
        assert 10 < row["memory_mb"] < 1000


def test_answers_are_those_of_closed_forms(rows):
    permutation, ring = (row["result"] for row in rows)
    # No flow can beat its host's link, and routes are at most six links of 1 us.
    assert permutation["end_ms"] >= 2e6 / 12.5e9 * 1e3
    # 2(N-1) steps of a 1/N share and of the longest way, six links.
    assert ring["end_ms"] == pytest.approx(2046 * (65536 / 12.5e9 + 6e-6) * 1e3)


def test_a_tolerance_may_be_given():
    done = bench("--json", "--rows", "perm-1024", "--tolerance", "0.01")
    assert json.loads(done.stdout)[0]["tolerance"] == 0.01


def test_table():
    done = bench("--rows", "perm-1024")
    assert "perm-1024" in done.stdout
    assert "0.05 s" in done.stdout


def test_the_stored_table_has_all_rows_and_says_when_each_was_measured():
    kept = json.loads((ROOT / "docs" / "results" / "sim.json").read_text())
    assert [row["id"] for row in kept] == list(ROWS)
    for row in kept:
        assert set(row["stamp"]) == {"date", "commit", "machine"}


def test_a_floor_and_peers_name_their_sources():
    for row in ROWS.values():
        assert row.floor_s is not None or not row.floor_is
        assert all(peer.source for peer in row.peers)


def test_a_saved_row_is_shown_with_its_floor_peers_and_day(tmp_path):
    kept = tmp_path / "sim.json"
    done = bench("--rows", "perm-1024", "--save", str(kept))
    assert done.returncode in (0, 1), done.stderr
    shown = bench("--show", str(kept))
    assert shown.stdout.startswith(done.stdout.rstrip())
    assert "SimGrid 4.1 0.92 s" in shown.stdout
    assert "floor: " in shown.stdout
    assert "1 row of " in shown.stdout


def test_an_unknown_row_is_one_sentence():
    done = bench("--rows", "perm-9")
    assert done.returncode == 2
    assert not done.stdout
    assert "there is no row 'perm-9'" in done.stderr
    assert "Traceback" not in done.stderr
