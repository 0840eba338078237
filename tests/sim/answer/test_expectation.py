"""Published figures of rows."""

from __future__ import annotations

from sim.answer.expectation import find_expect
from tests.sim.answer.test_scenario import JOBS, build, jobs


def test_figures_are_expected_of_a_job_by_name(tmp_path):
    expect = [{"scenario": "s", "gpus": 2, "job": "b", "images_per_s": 7, "kind": "measured",
               "within": "5%", "source": "x"}]
    rows = jobs(tmp_path, JOBS, expect=expect)
    assert rows["a"].expect is None
    assert rows["b"].expect.images_per_s == 7
    made = build(tmp_path, expect=[expect[0] | {"job": None}])
    assert find_expect(made.topology, "s", 2, "").within == 0.05
    assert find_expect(made.topology, "s", 1, "") is None
