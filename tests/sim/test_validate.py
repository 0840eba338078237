"""``python -m sim.validate``: published cases, fidelities, pages, and wrong options."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import yaml
from click.testing import CliRunner

from sim.validate import main
from sim.validation.fidelities import CASES, compare, summary_line
from tests.support import ROOT

if TYPE_CHECKING:
    from pathlib import Path

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
