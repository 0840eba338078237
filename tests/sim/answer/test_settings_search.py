"""``sim.tune --settings``: a search by Optuna finds what a full grid finds, and goes on later."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from sim.answer.scenario import Run
from sim.answer.settings_search import MIB, Space, Trials, environment_of, scenario_of, search
from sim.schema.input_errors import Problem, TopologyError
from sim.tune import main
from tests.support.cluster_files import cluster, topology, write

if TYPE_CHECKING:
    from pathlib import Path

    from sim.cluster.cluster import Cluster

pytest.importorskip("optuna")

TWO_HOSTS: dict[str, Any] = {
    "hosts": 2, "gpus": 2, "rate_bps": 5e9,
    "workload": {"model": "vgg16-quarter", "batch": 4, "framework": "ddp"},
    "scenario": {"stack": "harp", "allreduce": "ring"}}


def nothing(steps: float = 1, doing: str | None = None) -> None:
    """No progress bar."""


def space_of(made: Cluster) -> Space:
    return Space.of(made, made.topology.scenarios[0])


@pytest.fixture
def made(tmp_path: Path) -> Cluster:
    return cluster(tmp_path, **TWO_HOSTS)


@pytest.mark.parametrize(("framework", "nbytes"), [
    ("ddp", 25 * MIB), ("horovod", 128 * MIB), ("megatron", 160_000_000)])
def test_the_default_bucket_is_that_of_a_run(tmp_path: Path, framework: str, nbytes: int) -> None:
    """Megatron's 40 million gradients of 4 bytes among them."""
    made = cluster(tmp_path, **TWO_HOSTS | {
        "workload": TWO_HOSTS["workload"] | {"framework": framework}})
    assert space_of(made).default()["fusion"] == nbytes
    assert Run(made, made.topology.scenarios[0], 4).jobs[0].recipe.threshold_bytes == nbytes


def test_the_search_finds_what_the_full_grid_finds(made: Cluster, tmp_path: Path) -> None:
    """Within 1 %, by less than half of its simulations."""
    scenario = made.topology.scenarios[0]
    space = replace(space_of(made), fusion=(25 * MIB, 4 * MIB, MIB), paths=(1, 2), engines=(1,))
    found = search(made, scenario, space, tmp_path / "journal", nothing, budget_s=600, most=45,
                   checked=0)
    trials = Trials(made, scenario)
    best_s = min(trials.step_s(point) for point in space.points())
    assert found.of == len(trials.known)
    assert found.tried < found.of / 2
    assert found.best_s <= 1.01 * best_s
    assert found.best["algorithm"] == "2d-topk"


def test_a_search_goes_on_where_the_last_one_ended(made: Cluster, tmp_path: Path) -> None:
    scenario, space, journal = made.topology.scenarios[0], space_of(made), tmp_path / "journal"
    first = search(made, scenario, space, journal, nothing, most=8, checked=0)
    again = search(made, scenario, space, journal, nothing, most=4, checked=0)
    assert (first.before, again.before) == (0, 8)
    assert again.best_s <= first.best_s


def test_a_search_goes_on_after_one_that_was_killed_while_it_wrote(
        made: Cluster, tmp_path: Path) -> None:
    scenario, space, journal = made.topology.scenarios[0], space_of(made), tmp_path / "journal"
    search(made, scenario, space, journal, nothing, most=8, checked=0)
    journal.write_bytes(journal.read_bytes()[:-5])
    for _ in range(2):
        again = search(made, scenario, space, journal, nothing, most=2, checked=0)
    assert again.before >= 9


@pytest.mark.parametrize("text", ["my notes\n\n", "my notes", "{}\n", "[]\n"])
def test_a_file_that_is_no_journal_is_one_sentence(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "tuned"
    folder.mkdir()
    (folder / "trials.journal").write_text(text)
    file = write(tmp_path, topology(**TWO_HOSTS))
    done = CliRunner().invoke(main, [str(file), "--settings", str(folder), "--sizes", "1MiB"])
    assert done.exit_code == 2, done.output
    assert f"{folder}/trials.journal is no journal of trials; allowed: " in done.output
    assert (folder / "trials.journal").read_text() == text


def test_the_best_few_run_again_at_packet(made: Cluster, tmp_path: Path) -> None:
    found = search(made, made.topology.scenarios[0], space_of(made), tmp_path / "journal", nothing,
                   most=12, checked=2)
    assert len(found.checked) == 2
    assert all(packet_s for _, _, packet_s in found.checked)
    assert found.best == min(found.checked, key=lambda row: row[2] or 0.0)[0]


def test_the_deployed_plan_is_the_simulated_one(made: Cluster) -> None:
    """The variables of a point give the scenario's LIGHT_* settings, and no others."""
    scenario = made.topology.scenarios[0]
    point = space_of(made).point({"algorithm": "2d-topk", "threshold": 65536, "fp16": 1})
    changed, settings = scenario_of(scenario, point, "flow")
    variables = environment_of(point, "cycle")
    assert changed.light_settings == {name: float(value) for name, value in variables.items()
                                      if name.startswith("LIGHT_")}
    assert variables["HARP_PATHS"] == str(changed.sockets)
    assert settings.figures == {"harp.threads": float(variables["HARP_ENGINES"])}
    assert int(variables["HOROVOD_FUSION_THRESHOLD"]) == changed.fusion.threshold


def test_the_files_are_written(tmp_path: Path) -> None:
    file = write(tmp_path, topology(**TWO_HOSTS))
    folder = tmp_path / "tuned"
    done = CliRunner().invoke(main, [str(file), "--settings", str(folder), "--budget", "1s",
                                     "--sizes", "1MiB"])
    assert done.exit_code == 0, done.output
    report = (folder / "report.md").read_text()
    assert report == done.output
    assert "| algorithm | 2d-topk | nccl |" in report
    assert "| 25MiB | 2d-topk | LIGHT_TOPK_ALLREDUCE is 1," in report
    env = (folder / "env").read_text()
    assert "export LIGHT_2D_ALLREDUCE=1\nexport LIGHT_TOPK_ALLREDUCE=1\n" in env
    assert "bucket_cap_mb=" in env
    assert (folder / "tuning.json").exists()


def test_models_that_leave_gradients_out_can_be_refused(made: Cluster) -> None:
    space = Space.of(made, made.topology.scenarios[0], lossless=True)
    assert space.algorithm == ("nccl", "ring", "2d")


def refusal_of(tmp_path: Path, folder: Path, **changed: Any) -> str:
    """Give what a search says that cannot be made."""
    file = write(tmp_path, topology(**(TWO_HOSTS | changed)))
    done = CliRunner().invoke(main, [str(file), "--settings", str(folder), "--sizes", "1MiB"])
    assert done.exit_code == 2, done.output
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_without_optuna_the_command_names_the_extra(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert refusal_of(tmp_path, tmp_path / "tuned") == (
        "error: --settings: needs Optuna, which is not installed; run `pip install optuna`\n")
    assert not (tmp_path / "tuned").exists()


def test_sizes_are_read_before_anything_is_searched_and_written(tmp_path: Path) -> None:
    file, folder = write(tmp_path, topology(**TWO_HOSTS)), tmp_path / "tuned"
    done = CliRunner().invoke(main, [str(file), "--settings", str(folder), "--sizes", "many"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "error: --sizes many: 'many' is not a size" in done.stderr
    assert not folder.exists()


def test_a_job_that_cannot_run_leaves_no_folder(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: Any) -> None:
        raise TopologyError("x.yaml", Problem("is too large"))

    monkeypatch.setattr("sim.answer.settings_search.run_scenario", cannot)
    assert refusal_of(tmp_path, tmp_path / "tuned") == "error: x.yaml: is too large\n"
    assert not (tmp_path / "tuned").exists()


@pytest.mark.parametrize("file", [None, "trials.journal", "env"])
def test_a_folder_of_somebody_else_is_one_sentence(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str | None) -> None:
    folder = tmp_path / "tuned"
    folder.mkdir()
    theirs = folder if file is None else folder / file
    if file:
        theirs.touch()
    granted = os.access
    monkeypatch.setattr("harp.cli.io.os.access", lambda path, mode: (
        not (mode & os.W_OK and str(path) == str(theirs)) and granted(path, mode)))
    assert "no permission to c" in refusal_of(tmp_path, folder)
    assert list(folder.iterdir()) == ([theirs] if file else [])


@pytest.mark.parametrize(("options", "sentence"), [
    (["--settings", "DIR", "-o", "x.json"], "-o does not work with --settings"),
    (["--lossless"], "--lossless does not work with NCCL's table; use --settings"),
    (["--settings", "DIR", "--ratio", "0"], "0.0 is not in the range 0<x<=1"),
    (["--settings", "/dev/null/d"],
     "cannot make files in '/dev/null/d': '/dev/null' is not a directory"),
])
def test_a_mistake_is_one_sentence(tmp_path: Path, options: list[str], sentence: str) -> None:
    file = write(tmp_path, topology(**TWO_HOSTS))
    done = CliRunner().invoke(main, [str(file), *(str(tmp_path / "d") if word == "DIR" else word
                                                  for word in options)])
    assert done.exit_code == 2
    assert sentence in done.output
