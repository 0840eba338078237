"""Rows of TTF's compilation: the programs of the reports, and what is made of their runs."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from bench.subject import BenchError, PeerError
from bench.ttf import table_peers
from bench.ttf.compile_rows import Reports
from bench.ttf.recompile_reports import REPORTS
from bench.ttf.ttf_rows import SUBJECT
from tests.support.levels import long_except


@pytest.mark.parametrize("report", long_except(
    REPORTS, "batch-sizes", "parameter-shapes"))
def test_a_program_of_a_report_runs_the_same_again(report):
    def run():
        torch.manual_seed(0)
        step = REPORTS[report].make(lambda thing: getattr(thing, "step", thing))
        return [float(step(number)) for number in range(9)]
    assert run() == pytest.approx(run(), rel=1e-4)  # threads add in any order


def test_twelve_reports_have_an_address_each():
    assert len({report.url for report in REPORTS.values()}) == 12


class Answers(Reports):
    """Runs that were made before."""

    def __init__(self, runs):
        self._first, self._fewest = runs, dict.fromkeys(runs["ours"], 1)


def runs(found=1.0):
    seconds = {"ours": (1, 4, 6), "default": (4, 5, 10), "dynamic": (2, 5, 5), "stance": (4, 8, 9),
               "eager": (1, 2, 6)}
    return {how: {f"report {place}": {"seconds": each, "cpu_s": 0.0, "graphs": place,
                                      "found": found if how == "ours" else 1.0}
                  for place, each in enumerate(taken)} for how, taken in seconds.items()}


def test_shares_are_of_the_default_and_of_the_best_setting():
    answers = Answers(runs())
    sample = answers.shares()
    assert sample.value == 0.6
    assert sample.more == {"of_default_at_most": 0.8, "of_best_setting_at_most": 1.2}
    assert answers.share_of_eager().value == 2.0
    assert answers.graphs().value == 1


def test_a_wrong_result_is_no_measurement():
    with pytest.raises(BenchError, match="report 0"):
        Answers(runs(found=1.01)).shares()


def test_rows_of_peers_are_there_whatever_is_installed():
    assert SUBJECT.known is None
    assert {"tfra-find", "tfra-insert", "torchrec"} <= SUBJECT.rows.keys()


def ask(monkeypatch, tmp_path, program):
    (tmp_path / "peer_loops.py").write_text(program)
    monkeypatch.setattr(table_peers, "__file__", str(tmp_path / "table_peers.py"))
    monkeypatch.setattr(table_peers, "installed", lambda *_: sys.executable)
    with table_peers.peer("tfra", np.zeros((1, 2), np.int64), 5, 32) as asked:
        return asked("find", 0.25)


def test_a_peer_that_cannot_be_imported_is_an_error_of_the_peer(monkeypatch, tmp_path):
    with pytest.raises(PeerError, match=r"^ModuleNotFoundError: No module named 'nowhere_at_all'$"):
        ask(monkeypatch, tmp_path, "import nowhere_at_all")


def test_a_peer_answers_with_ids_and_seconds(monkeypatch, tmp_path):
    program = """
import sys
assert sys.argv[1::2] == ["tfra", "5"] and sys.argv[4] == "32"
print("ready", flush=True)
assert input() == '{"do": "find", "seconds": 0.25}'
print('{"seconds": 2.0, "ids": 6}', flush=True)
"""
    assert ask(monkeypatch, tmp_path, program) == 3.0
