"""Rows of TTF's compilation: the programs of the reports, and what is made of their runs."""

from __future__ import annotations

import pytest
import torch

from bench.subject import BenchError
from bench.ttf.compile_rows import Reports
from bench.ttf.recompiles import REPORTS
from tests.support.levels import long_except


@pytest.mark.parametrize("report", long_except(
    REPORTS, "plateau", "ragged-tail", "batch-sizes", "parameter-shapes"))
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
    seconds = {"ours": (1, 4, 6), "default": (4, 5, 10), "dynamic": (2, 5, 5), "stance": (4, 8, 9)}
    return {how: {f"report {place}": {"seconds": each, "cpu_s": 0.0, "graphs": place,
                                      "found": found if how == "ours" else 1.0}
                  for place, each in enumerate(taken)} for how, taken in seconds.items()}


def test_shares_are_of_the_default_and_of_the_best_setting():
    answers = Answers(runs())
    sample = answers.shares()
    assert sample.value == 0.6
    assert sample.more == {"of_default_at_most": 0.8, "of_best_setting_at_most": 1.2}
    assert answers.graphs().value == 1


def test_a_wrong_result_is_no_measurement():
    with pytest.raises(BenchError, match="report 0"):
        Answers(runs(found=1.01)).shares()
