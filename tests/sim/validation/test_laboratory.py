"""Packet held against the laboratory: the cases, one of them run, and the page."""

from __future__ import annotations

import pytest

from lab.namespace import why_unusable
from sim.cluster.cluster import Cluster
from sim.schema import load
from sim.validation.fidelities import FILE, KIB, Case, pattern
from sim.validation.laboratory import (
    LAB_CASES,
    SMALL,
    LabCompared,
    compare_with_lab,
    median_error,
    unexplained,
    write_compared,
)
from tests.support.levels import long


def test_cases_hold_both_stacks_and_fit_their_cluster():
    stacks = [Cluster(load(FILE, [*SMALL, *case.changes])).topology.scenarios[0].stack
              for case in LAB_CASES]
    assert stacks.count("harp") >= 6
    assert stacks.count("kernel-tcp") >= 6
    assert len({case.name for case in LAB_CASES}) == len(LAB_CASES)


@long
@pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
def test_a_message_takes_as_long_in_the_laboratory_as_over_packets():
    row = compare_with_lab(Case("small", pattern([0], [2], 128 * KIB), ("lab.scale=1/1000",)))
    assert row.lab_s > 0.7 * row.packet_s


@pytest.mark.parametrize(("busy", "lab_s", "runs"), [
    ([True, False], 2.0, 2), ([True, True], 2.0, 2), ([False], 1.0, 1)])
def test_a_case_for_which_the_machine_was_late_is_measured_once_more(monkeypatch, busy, lab_s,
                                                                     runs):
    asked = []

    def run_case(_cluster, _case, fidelity, _runs):
        asked.append(fidelity)
        late = fidelity == "lab" and busy[asked.count("lab") - 1]
        return [float(asked.count("lab"))] * 4, ["too busy for the lab"] if late else [], ()

    monkeypatch.setattr("sim.validation.laboratory.run_case", run_case)
    row = compare_with_lab(Case("small", pattern([0], [2], KIB)))
    assert (row.lab_s, asked.count("lab"), row.busy) == (lab_s, runs, all(busy))


def test_the_page_says_how_far_off_each_row_is(tmp_path):
    case = Case("a ring", pattern([0], [1], KIB))
    rows = [LabCompared(case, 90e-6, 100e-6, busy=False),
            LabCompared(case._replace(name="b"), 75e-6, 100e-6, busy=True)]
    write_compared(rows, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "| a ring | 90 us | 100 us | -10 % |" in text
    assert "1 of them within 20%. The machine was too busy for 1 of them" in text
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    assert median_error(rows) == pytest.approx(0.175)
    assert [row.case.name for row in unexplained(rows)] == ["b"]
