"""Places for the pages of a model, held against a run of each."""

import json

import pytest
from click.testing import CliRunner

from sim.answer import page_choices
from sim.answer.page_choices import choices
from sim.cluster.cluster import Cluster
from sim.run import main as run
from sim.schema import TopologyError, load
from sim.tune import main
from tests.support.cluster_files import topology, write
from tests.support.levels import long

MODEL = {"layers": 2, "width": 1024, "heads": 8, "vocabulary": 1000}


def cluster_file(folder, *, disk="100GB", ram="1GiB", memory="4GiB", **offload):
    host = {"gpus": {"count": 1, "model": "any", "effective": "10TFLOPS", "memory": memory},
            "ram": ram} | ({"disk": {"capacity": disk, "read": "1GB/s"}} if disk else {})
    return write(folder, topology(
        hosts=2, gpus=1, host=host, scenario={"offload": {"to": "host"} | offload},
        workload={"model": MODEL, "sequence": 512, "batch": 2, "precision": "bf16",
                  "framework": "free"}))


def found_in(path, samples=4):
    made = load(path)
    return choices(Cluster(made), made.scenarios[0], samples)


def front_of(path, *options):
    result = CliRunner().invoke(main, [str(path), "--layouts", "--workers", "1", "--budget",
                                       "10min", "-o", "-", "--quiet", *options])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@long
def test_the_front_has_the_fastest_of_all_places(tmp_path, monkeypatch):
    """Each place is run by itself; the search may leave out only what is no better."""
    monkeypatch.setattr(page_choices, "PAGES_BYTES", (1 << 20, 16 << 20))
    monkeypatch.setattr(page_choices, "SHARES", (1, 4))
    monkeypatch.setattr(page_choices, "recomputations", lambda _: ("none",))
    path = cluster_file(tmp_path, device="128MiB")
    answer = front_of(path)
    assert answer["open"] == 0
    speeds = []
    for choice in found_in(path)[0]:
        changes = [f"scenarios[s].offload={json.dumps(choice.offload)}",
                   *(f"workload.{key}={value}" for key, value in choice.workload.items())]
        result = CliRunner().invoke(run, [str(path), "--quiet", "--json", "-", "--draws", "0",
                                          *(part for each in changes for part in ("--set", each))])
        if result.exit_code == 0:
            row = json.loads(result.stdout)["scenarios"][0]
            speeds.append(row["images_per_s"])
            assert row["images_per_s"] <= 4 / choice.least_s * (1 + 1e-9)
    assert answer["front"][0]["images_per_s"] == pytest.approx(max(speeds))
    assert len({round(speed, 6) for speed in speeds}) > 4


@long
def test_what_the_front_names_has_the_memory_that_a_run_counts(tmp_path):
    path = cluster_file(tmp_path)
    best = front_of(path)["front"][0]
    result = CliRunner().invoke(run, [
        str(path), "--quiet", "--json", "-", "--draws", "0",
        "--set", f"scenarios[s].offload={json.dumps(best['offload'])}",
        *(part for key, value in best["workload"].items()
          for part in ("--set", f"workload.{key}={value}"))])
    row = json.loads(result.stdout)["scenarios"][0]
    assert row["images_per_s"] == pytest.approx(best["images_per_s"])
    assert row["memory_bytes"]["total"] <= best["memory_bytes"]


def test_a_disk_is_tried_only_where_every_host_has_one(tmp_path):
    (tmp_path / "without").mkdir()
    assert {choice.offload["to"] for choice in found_in(cluster_file(tmp_path))[0]} == {
        "host", "disk"}
    without = cluster_file(tmp_path / "without", disk=None)
    assert {choice.offload["to"] for choice in found_in(without)[0]} == {"host"}


def test_what_the_file_says_of_updates_and_moves_stays(tmp_path):
    found, _ = found_in(cluster_file(tmp_path, update=2e9, slows=0.5))
    assert {(choice.offload["update"], choice.offload["slows"]) for choice in found} == {(2e9, 0.5)}


@pytest.mark.parametrize(("samples", "memory", "says"), [
    (3, "4GiB", "3 samples cannot be dealt out to 2 GPUs"),
    (2, "1GiB", "activations and buffers of one sample leave no room for pages on a GPU")])
def test_what_cannot_be_searched_is_a_sentence(tmp_path, samples, memory, says):
    with pytest.raises(TopologyError, match=says):
        found_in(cluster_file(tmp_path, memory=memory), samples)
