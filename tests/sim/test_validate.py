"""Published cases load, are predicted, and fitted rows are predicted without their source."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import pytest
import yaml
from click.testing import CliRunner

from sim.calibration.joint_fit import FITTED, Search, fit_published, marked_rows
from sim.cluster.cluster import Cluster
from sim.schema.input_errors import TopologyError
from sim.schema.parameters import load_stack
from sim.validate import main
from sim.validation.case import QUANTITIES, case_files, load_case, load_published, published_files
from sim.validation.fidelities import CASES, compare, summary_line
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
from tests.support import ROOT
from tests.support.levels import long

if TYPE_CHECKING:
    from pathlib import Path

FILES = case_files()
QUICK = ("hpn-rtx3060-100g", "nccl-tests-82-azure-latency", "nccl-209-gcp-32g-2x1")
"""Cases of two hosts with one GPU each."""


def run(*arguments: str):
    return CliRunner().invoke(main, ["published", *arguments])


def case_of(**changed):
    """A case of two hosts at 10 Gb/s as plain data."""
    return {"source": "made up",
            "topology": {"name": "t", "hosts": [{
                "name": "h", "count": 2,
                "gpus": {"count": 1, "model": "any", "effective": "1TFLOPS"},
                "nvlink": "none", "nics": [{"name": "eth", "rate": "10Gbps"}]}],
                "stacks": {"rdma": {"base": "rdma", "deviation": 1.0}},
                "scenarios": [{"name": "ring", "stack": "rdma"}]},
            "figures": [{"scenario": "ring", "size": "256MiB", "busbw": "1.18GB/s"}]} | changed


def write(folder: Path, data, name="made-up.yaml") -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_case_loads_and_names_its_source(path):
    case = load_case(path)
    assert len(case.source) > 10
    assert case.topology.name == path.stem
    for key, values in case.open.items():
        for value in values:
            load_case(path, {key: value})


def test_there_are_enough_cases_from_enough_sources():
    cases = [case for path in published_files() for case in load_published(path)]
    assert sum(len(case.figures) for case in cases) >= 25
    assert len({case.source for case in cases}) >= 8
    marked = marked_rows(FILES)
    assert len(marked) >= 12
    assert len({row.source for row in marked}) >= 6


def test_the_command_predicts_a_subset():
    arguments = [word for name in QUICK for word in ("--case", name)]
    result = run(*arguments, "--draws", "2")
    assert result.exit_code == 0, result.output
    for name in QUICK:
        assert name in result.stdout
    assert "from 3 sources: median error" in result.stdout


def test_an_unknown_case_is_one_sentence():
    result = run("--case", "nccl-451")
    assert result.exit_code == 2
    assert "did you mean" in result.output


def test_a_miss_without_a_reason_fails_the_command(tmp_path, monkeypatch):
    figure = {"scenario": "ring", "size": "256MiB", "busbw": "0.5GB/s"}
    for note, status in (({}, 1), ({"note": "it was told wrong"}, 0)):
        path = write(tmp_path, case_of(figures=[figure | note]))
        monkeypatch.setattr("sim.validation.case.published_files", lambda path=path: [path])
        result = run("--draws", "0")
        assert result.exit_code == status, result.output


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


def test_a_first_prediction_that_is_no_ratio_is_refused(tmp_path):
    figure = {"scenario": "ring", "size": "1MiB", "busbw": "1GB/s", "first": [0.0, 1.0, 2.0]}
    with pytest.raises(TopologyError, match="first"):
        load_case(write(tmp_path, case_of(figures=[figure])))


@pytest.mark.parametrize(("figure", "says"), [
    ({"scenario": "ring", "size": "1MiB"}, "no quantity"),
    ({"scenario": "ring", "busbw": "1GB/s"}, "one of samples_per_s, step"),
    ({"scenario": "ring", "size": "1MiB", "step": "1s"}, "one of busbw, algbw, time"),
    ({"scenario": "rign", "size": "1MiB", "busbw": "1GB/s"}, "did you mean 'ring'"),
])
def test_a_wrong_figure_is_refused_at_its_place(tmp_path, figure, says):
    with pytest.raises(TopologyError, match=says):
        load_case(write(tmp_path, case_of(figures=[figure])))


def test_gaps_of_a_source_widen_the_interval(tmp_path):
    told = predict_files([write(tmp_path, case_of(), "told.yaml")], 8, 1)[0]
    rates = {"hosts[0].nics[0].rate": ["5Gbps", "10Gbps", "20Gbps"]}
    open_ = predict_files([write(tmp_path, case_of(open=rates), "open.yaml")], 8, 1)[0]
    assert open_.at_values == told.at_values
    assert open_.low < 0.7 * told.value
    assert open_.high > 1.2 * told.value


def synthetic(folder: Path, name: str, source: str, value: str) -> Path:
    """A case of kernel TCP between two hosts, whose one thread is the limit."""
    data = case_of(source=source, figures=[{"scenario": "ring", "size": "256MiB", "busbw": value,
                                            "fits": True}])
    data["topology"] |= {"scenarios": [{"name": "ring", "stack": "kernel-tcp"}]}
    data["topology"]["hosts"][0] |= {"nics": [{"name": "eth", "rate": "100Gbps"}]}
    return write(folder, data, f"{name}.yaml")


def test_a_row_is_left_out_with_all_of_its_source(tmp_path):
    """Two sources that contradict each other: each is predicted by the other's figures alone."""
    slow = synthetic(tmp_path, "slow", "slow", "0.8GB/s")
    fast = synthetic(tmp_path, "fast", "fast", "1.6GB/s")
    fit = fit_published([slow, fast])[0]
    for row in fit.rows:
        other = 1.6e9 if row.row.source == "slow" else 0.8e9
        assert row.left_out / 8 == pytest.approx(other, rel=0.05), row.row.case
    cost = fit.parameters[0]
    packets = 0.2e-6 / 1448  # what the two sources would need, less the cost of packets
    assert cost.high / cost.low == pytest.approx(
        (1 / 1.6e9 - packets) / (1 / 3.2e9 - packets), rel=0.1)


def test_a_figure_of_a_stack_that_is_not_fitted_is_refused(tmp_path):
    data = case_of(figures=[{"scenario": "ring", "size": "256MiB", "busbw": "1GB/s", "fits": True}])
    data["topology"] |= {"scenarios": [{"name": "ring", "stack": "rdma"}]}
    with pytest.raises(TopologyError, match=r"rdma; allowed: figures of kernel-tcp, tcpx"):
        marked_rows([write(tmp_path, data)])


@long
def test_deviation_covers_errors_that_parameters_do_not_explain(tmp_path):
    """Sources that agree leave none; those that differ sixteenfold more than their parameters."""
    same = [synthetic(tmp_path, name, name, "1.2GB/s") for name in ("a", "b")]
    assert fit_published(same)[0].deviation.value == pytest.approx(1.0)
    apart = [synthetic(tmp_path, "slow", "slow", "0.2GB/s"),
             synthetic(tmp_path, "fast", "fast", "3.2GB/s")]
    found = fit_published(apart)[0].deviation
    # Each is missed sixteenfold, and a triangle of that variance reaches further by sqrt(6).
    assert 0.8 * math.sqrt(6) * math.log(16) < math.log(found.value) < math.sqrt(6) * math.log(17)
    assert found.stale


@pytest.mark.long
def test_the_shipped_deviation_is_of_the_rows_of_the_fit():
    deviation = fit_published()[0].deviation
    assert not deviation.stale
    shipped = load_stack("kernel-tcp").deviation
    assert shipped.interval == pytest.approx((1 / deviation.shipped, deviation.shipped), rel=0.01)


@long
def test_a_left_out_prediction_does_not_depend_on_what_was_measured(tmp_path):
    """Another figure in the row itself changes the fit, but not the row's own prediction."""
    fast = synthetic(tmp_path, "fast", "fast", "1.6GB/s")
    found = []
    for value in ("0.8GB/s", "1.2GB/s"):
        slow = synthetic(tmp_path, "slow", "slow", value)
        search = Search("kernel-tcp", marked_rows([slow, fast]))
        found.append(search.prediction(0, search.fit([1])))
    assert found[0] == found[1]


def test_the_fit_gives_back_what_made_the_rows(tmp_path):
    path = synthetic(tmp_path, "one", "one", "1.29GB/s")
    row = marked_rows([path])[0]
    search = Search("kernel-tcp", [row])
    best = search.fit([0])
    assert len(best) == len(FITTED["kernel-tcp"])
    assert search.prediction(0, best) == pytest.approx(row.figure.value, rel=0.03)


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


@pytest.mark.long
def test_the_page_of_fidelities_says_what_they_say_today():
    """README shows what the page says, so that neither has figures of its own."""
    text = (ROOT / "docs" / "results" / "fidelities.md").read_text("utf-8")
    assert re.findall(r"^\| (?!case|---)(.*?) \|", text, re.MULTILINE) == [
        case.name for case in CASES]
    assert summary_line([compare(case) for case in CASES]) in text, (
        "run `python -m sim.validate fidelities --page docs/results/fidelities.md`, then "
        "`python docs/refresh.py README.md`")


@pytest.mark.parametrize("what", ["published", "fidelities", "packet", "lab"])
def test_a_page_that_cannot_be_written_is_refused_before_anything_runs(what):
    done = CliRunner().invoke(main, [what, "--page", "/nonexistent/page.md"])
    assert done.exit_code == 2
    assert done.output == ("error: cannot write '/nonexistent/page.md': there is no directory "
                           "'/nonexistent'\n")


@pytest.mark.parametrize(("options", "says"), [
    (["fidelities", "--workers", "2"], "--workers and --dask work only with published and files"),
    (["published", "--workers", "2", "--dask", "x"], "a Dask cluster has its own")])
def test_where_cases_run_is_a_matter_of_published_and_files(options, says):
    done = CliRunner().invoke(main, options)
    assert done.exit_code == 2
    assert says in done.output


def test_fitted_rows_are_called_so_and_make_no_page(tmp_path):
    page = tmp_path / "page.md"
    case = ["published", "--case", "nccl-209-gcp-32g-2x1", "--draws", "0"]
    result = CliRunner().invoke(main, case)
    assert "1 rows in the fit" in result.stdout
    assert "left out" not in result.stdout
    refused = CliRunner().invoke(main, [*case, "--page", str(page)])
    assert refused.exit_code == 2
    assert "--refit" in refused.stderr
    assert not page.exists()
