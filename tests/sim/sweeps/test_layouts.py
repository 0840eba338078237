"""The search of layouts, held against all layouts of a small cluster."""

import json

import pytest
from click.testing import CliRunner

from sim.answer.layout_choices import choices, samples_of
from sim.cluster.cluster import Cluster
from sim.schema import load
from sim.sweeps.layouts import SLOWEST, Means, search
from sim.sweeps.study import Study
from sim.tune import main
from tests.support.cluster_files import topology, write
from tests.support.levels import long

MODEL = {"layers": 2, "width": 1024, "heads": 8, "vocabulary": 1000}


def cluster_file(folder, *, gpus=2, rate_bps=25e9, memory="40GiB", scenario=None, **workload):
    return write(folder, topology(
        hosts=2, gpus=gpus, rate_bps=rate_bps, host={"gpus": {
            "count": gpus, "model": "any", "effective": "100TFLOPS", "memory": memory}},
        scenario={"allreduce": "nccl"} | (scenario or {}),
        workload={"model": MODEL, "sequence": 512, "batch": 2, "accumulation": 1,
                  "precision": "bf16", "framework": "free"} | workload))


def tune(*options):
    return CliRunner().invoke(main, [str(option) for option in options])


def all_of(path):
    """Every layout that fits, simulated."""
    made = load(path)
    scenario = made.scenarios[0]
    found, too_large = choices(Cluster(made), scenario, samples_of(made, scenario))
    study = Study(str(path), path.read_bytes(), (scenario.name,))
    rows = []
    for choice in found:  # one at a time, so that none stands for another
        one = search(study, scenario, made, [choice], 8, Means(60, workers=1), lambda *_: None)
        assert not one.open
        rows += one.front
    return rows, found, too_large


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """All layouts over a network that is slow beside the GPUs."""
    path = cluster_file(tmp_path_factory.mktemp("all"), rate_bps=5e9)
    return path, *all_of(path)


@long
def test_the_front_is_that_of_all_layouts(simulated):
    """An oracle by hand: of all rows those that no other one beats in speed or memory."""
    path, rows, found, _ = simulated
    assert len(found) > 50
    best = max(row.speed for row in rows)
    front = {(row.speed, row.choice.memory) for row in rows if row.speed >= SLOWEST * best
             and not any(other.speed >= row.speed and other.choice.memory <= row.choice.memory
                         and (other.speed, other.choice.memory) != (row.speed, row.choice.memory)
                         for other in rows)}
    result = tune(path, "--layouts", "--budget", "10min", "--workers", "1", "-o", "-", "--quiet")
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["open"] == 0
    assert {(row["images_per_s"], row["memory_bytes"]) for row in answer["front"]} == front
    assert answer["simulated"] < len(found)


@long
def test_no_layout_is_faster_than_its_bound_and_memory_is_what_the_run_counts(simulated):
    _, rows, found, _ = simulated
    assert len(rows) == len(found)
    for row in rows:
        assert row.speed <= 8 / row.choice.least_s * (1 + 1e-9), row.choice.text
        assert row.row["memory_bytes"] == row.choice.memory


@long
def test_what_the_front_names_runs_as_it_says(tmp_path):
    """`parallel` and `workload` are keys of a topology file."""
    from sim.run import main as run

    path = cluster_file(tmp_path)
    answer = json.loads(tune(path, "--layouts", "--workers", "1", "-o", "-", "--quiet").stdout)
    best = answer["front"][0]
    changes = [f"scenarios[s].parallel={json.dumps(best['parallel'])}",
               *(f"workload.{key}={value}" for key, value in best["workload"].items())]
    result = CliRunner().invoke(run, [str(path), "--quiet", "--json", "-", "--draws", "0",
                                      *(part for change in changes for part in ("--set", change))])
    row = json.loads(result.stdout)["scenarios"][0]
    assert row["images_per_s"] == pytest.approx(best["images_per_s"])
    assert row["memory_bytes"]["total"] == best["memory_bytes"]


def test_a_search_without_time_says_how_many_are_open(tmp_path):
    result = tune(cluster_file(tmp_path), "--layouts", "--budget", "1us", "-o", "-", "--quiet")
    answer = json.loads(result.stdout)
    assert answer["front"] == []
    assert answer["open"] == answer["layouts"] > 0


@pytest.mark.parametrize(("keys", "options", "says"), [
    ({"memory": "1GiB"}, (), r"layouts fits into 1.0 GiB of a GPU"),
    ({"scenario": {"parallel": "fsdp"}}, ("--ratio", "0.1"), "--ratio does not work"),
    ({}, ("--workers", "2", "--dask", "tcp://10.0.0.1:1"), "a Dask cluster has its own"),
    ({}, ("-o", "front.txt"), ".json"),
    ({}, ("--scenario", "z"), "not a known scenario; allowed: s"),
    ({}, ("--budget", "soon"), "--budget soon")])
def test_a_mistake_is_one_sentence(tmp_path, monkeypatch, keys, options, says):
    monkeypatch.chdir(tmp_path)
    result = tune(cluster_file(tmp_path, **keys), "--layouts", *options)
    assert result.exit_code == 2
    assert says in result.stderr.replace("\n", " ")
    assert result.stderr.count("\n") == 1


def test_options_of_layouts_need_layouts(tmp_path):
    result = tune(cluster_file(tmp_path), "--workers", "2")
    assert result.exit_code == 2
    assert "--workers does not work with this; use --layouts" in result.stderr
    assert tune("--layouts").exit_code == 2
