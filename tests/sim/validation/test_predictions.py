"""Predictions beside published figures, and their page."""

from __future__ import annotations

import pytest
import yaml

from sim.cluster.cluster import Cluster
from sim.validation.case import QUANTITIES, load_case, load_published, published_files
from sim.validation.predictions import (
    Prediction,
    Summary,
    first_lines,
    in_words,
    marks,
    missed,
    page,
    predict,
    predict_files,
    size_in_words,
    summary_lines,
)
from tests.sim.test_validate import case_of, write
from tests.sim.validation.test_case import FILES
from tests.support import ROOT


def test_a_collective_is_predicted_in_its_own_quantity(tmp_path):
    """All-reduce of 256 MiB between two GPUs at 10 Gb/s: bus bandwidth is the wire's payload."""
    quantities = {"busbw": "1.18GB/s", "algbw": "1.18GB/s", "time": "227ms"}
    figures = [{"scenario": "ring", "size": "256MiB", name: value}
               for name, value in quantities.items()]
    case = load_case(write(tmp_path, case_of(figures=figures)))
    cluster = Cluster(case.topology)
    for figure in case.figures:
        assert predict(cluster, figure) == pytest.approx(figure.value, rel=0.01)


def test_the_page_keeps_what_was_first_predicted():
    """Two figures of a source, one of them held by its first interval."""
    figures = [{"scenario": "ring", "size": "1MiB", "busbw": "1GB/s", "first": first}
               for first in ([1.5, 1.2, 2.0], [0.9, 0.8, 1.1])]
    case = load_case(ROOT / "made-up.yaml", data=yaml.safe_dump(case_of(figures=figures)).encode())
    rows = [Prediction("a", "b", number, figure, 1.0, 1.0, 1.0, 1.0)
            for number, figure in enumerate(case.figures)]
    assert first_lines(rows) == ["2 of collectives, from 1 sources: median error 30.0 %; 50 % too "
                                 "fast; P10 to P90 held 50 % of them."]


def test_gaps_of_a_source_widen_the_interval(tmp_path):
    told = predict_files([write(tmp_path, case_of(), "told.yaml")], 8, 1)[0]
    rates = {"hosts[0].nics[0].rate": ["5Gbps", "10Gbps", "20Gbps"]}
    open_ = predict_files([write(tmp_path, case_of(open=rates), "open.yaml")], 8, 1)[0]
    assert open_.at_values == told.at_values
    assert open_.low < 0.7 * told.value
    assert open_.high > 1.2 * told.value


def row(value, low, high, source="a"):
    """Give a row from its ratios of predicted over published."""
    figure = load_case(FILES[0]).figures[0]
    published = figure.value
    return Prediction("c", source, 0, figure, value * published, low * published, high * published,
                      value * published)


@pytest.mark.parametrize(("ratios", "found"), [
    ((1.0, 0.9, 1.1), {(1.0, "o")}),
    ((4.0, 2.0, 6.0), {(4.0, "o"), (5.0, ">")}),
    ((1.0, 0.1, 6.0), {(0.2, "<"), (1.0, "o"), (5.0, ">")}),
    ((6.0, 2.0, 7.0), {(5.0, ">")}),
    ((0.1, 0.05, 0.15), {(0.2, "<")}),
])
def test_what_the_plot_cuts_off_is_marked(ratios, found):
    assert {(round(at, 9), mark) for at, mark in marks(row(*ratios))} == found


def test_a_summary_counts_what_is_near_and_covered():
    rows = [row(1.0, 0.9, 1.1), row(1.2, 1.1, 1.3), row(1.5, 0.9, 2.0, "b"), row(0.9, 0.8, 1.0)]
    summary = Summary.of(rows)
    assert (summary.rows, summary.sources) == (4, 2)
    assert summary.median == pytest.approx(0.15)
    assert summary.near == 0.75
    assert summary.covered == 0.75
    assert [missed(each) for each in rows] == [False, False, True, False]
    assert Summary.of([]) is None


@pytest.mark.parametrize(("ratio", "owes"), [(0.756, False), (0.754, True), (1.246, True)])
def test_a_row_that_prints_as_a_quarter_owes_an_explanation(ratio, owes):
    assert missed(row(ratio, 0.5, 2.0)) == owes


@pytest.mark.parametrize("of", ["figure", "case"])
def test_rows_that_their_source_calls_wrong_are_listed_apart(tmp_path, of):
    """With the source's own words, and in no line but their own and that of all."""
    figures = [{"scenario": "ring", "size": "1MiB", "busbw": f"{rate}GB/s"} for rate in (1, 2)]
    given = {"apart": "a cable was broken"}
    case = case_of(figures=[figures[0] | (given if of == "figure" else {}), figures[1]])
    rows = predict_files([write(tmp_path, case | (given if of == "case" else {}))], draws=0)
    apart = 1 if of == "figure" else 2
    assert [each.apart for each in rows] == ["a cable was broken"] * apart + [""] * (2 - apart)
    lines = summary_lines(rows, covered=False)
    counts = {line.split(" ", 1)[1].split(",")[0]: int(line.split()[0]) for line in lines}
    assert counts["rows listed apart"] == apart
    assert counts.get("rows that nothing was fitted to", 0) == 2 - apart
    assert counts["rows in all"] == 2
    text = page(rows, "plot.png")
    assert f"| {'apart' if apart else ''} |" in text
    assert "## Rows listed apart" in text
    assert "a cable was broken" in text


def test_figures_read_as_their_source_wrote_them():
    figures = {figure.quantity: figure for path in FILES for figure in load_case(path).figures}
    assert set(figures) <= set(QUANTITIES)
    assert in_words(figures["busbw"], 8 * 5.21e9) == "5.21 GB/s"
    assert in_words(figures["time"], 42e-6) == "42 us"
    assert size_in_words(128 << 20) == "128 MiB"
    assert size_in_words(40 * 10**9) == "40 GB"
    assert size_in_words(25 * 10**6) == "25 MB"


def test_the_page_has_a_row_for_every_figure():
    """It is made by the command; after a change that moves answers, run it with --page."""
    text = (ROOT / "docs" / "results" / "validation.md").read_text("utf-8")
    assert (ROOT / "docs" / "results" / "validation.png").stat().st_size > 10_000
    for path in published_files():
        for case in load_published(path):
            assert text.count(f"| `{path.stem}` |") >= len(case.figures), path.stem
