"""``python -m sim.sweep``: every point once, whatever interrupts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

from sim.answer.answer import answer
from sim.cluster.cluster import Cluster
from sim.schema import load
from sim.sweep import main
from tests.support.cluster_files import topology, write
from tests.support.mounts import mounts

GRID = {"hosts[0].nics[0].rate": ["10Gbps", "100Gbps"], "workload.batch": [32, 64, 128]}
LIMIT_S = 120


def sweep_file(folder: Path, **keys: Any) -> Path:
    write(folder, topology(hosts=4, gpus=2, fabric={"template": "leaf-spine", "leaves": 2,
                                                    "spines": 2, "rate": "100Gbps"}), "t.yaml")
    path = folder / "sweep.yaml"
    design = {} if {"list", "random"} & set(keys) else {"grid": GRID}
    path.write_text(yaml.safe_dump({"topology": "t.yaml", **design, **keys}, sort_keys=False))
    return path


def run(*arguments: object) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


def stored(folder: Path) -> dict[str, int]:
    """Outcomes and when each was written."""
    return {path.name: path.stat().st_mtime_ns
            for path in (folder / ".harp-sweep").rglob("*.json")}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "sim.sweep", *map(str, arguments)]


def test_each_point_is_what_a_run_with_its_values_gives(tmp_path: Path) -> None:
    sweep, result = sweep_file(tmp_path), tmp_path / "r.parquet"
    done = run(sweep, "-o", result)
    assert done.exit_code == 0, done.output
    found = rows(result)
    assert [(row["hosts[0].nics[0].rate"], row["workload.batch"]) for row in found] == [
        (rate, batch) for rate in GRID["hosts[0].nics[0].rate"] for batch in GRID["workload.batch"]]
    for row in found:
        changes = [f"{key}={row[key]}" for key in GRID]
        made = load(tmp_path / "t.yaml", changes)
        (alone,) = answer(Cluster(made), made.scenarios, draws=0).scenarios
        assert row["images_per_s"] == pytest.approx(alone.images_per_s, rel=1e-8)
        assert row["bottleneck"] == alone.limits[0].name


def test_a_second_run_simulates_nothing_and_a_larger_one_only_what_is_new(tmp_path: Path) -> None:
    run(sweep_file(tmp_path), "-o", tmp_path / "a.parquet")
    first = stored(tmp_path)
    again = run(tmp_path / "sweep.yaml", "-o", tmp_path / "b.parquet")
    assert "6 of 6 points are stored" in again.stderr
    assert stored(tmp_path) == first
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    wider = {**GRID, "workload.batch": [32, 64, 128, 256]}
    run(sweep_file(tmp_path, grid=wider), "-o", tmp_path / "c.parquet")
    assert len(stored(tmp_path)) == 8
    assert {name: when for name, when in stored(tmp_path).items() if name in first} == first


def test_a_sweep_that_is_killed_goes_on_where_it_stopped(tmp_path: Path) -> None:
    grid = {"workload.batch": list(range(1, 161))}
    sweep = sweep_file(tmp_path, grid=grid)
    with subprocess.Popen(command(sweep, "-o", tmp_path / "r.parquet", "--workers", 2),
                          stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "of 160" in process.stderr.readline()  # a tenth is done
        process.kill()
        process.communicate(timeout=LIMIT_S)  # ends only when the workers have ended as well
    before = stored(tmp_path)
    assert 16 <= len(before) < 160
    assert not (tmp_path / "r.parquet").exists()
    done = run(sweep, "-o", tmp_path / "r.parquet")
    assert done.exit_code == 0, done.output
    assert f"{len(before)} of 160 points are stored" in done.stderr
    after = stored(tmp_path)
    assert len(after) == 160
    assert {name: after[name] for name in before} == before
    run(sweep, "-o", tmp_path / "fresh.parquet", "--cache", tmp_path / "other")
    assert (tmp_path / "r.parquet").read_bytes() == (tmp_path / "fresh.parquet").read_bytes()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_worker_that_is_killed_ends_it_with_a_sentence_and_keeps_the_rest(tmp_path: Path) -> None:
    sweep = sweep_file(tmp_path, grid={"workload.batch": list(range(1, 161))})
    with subprocess.Popen(command(sweep, "-o", tmp_path / "r.csv", "--workers", 2),
                          stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        process.stderr.readline()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        _, says = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    assert "a worker was killed" in says
    assert "Traceback" not in says
    assert f"{len(stored(tmp_path))} of 160 points are kept" in says


@mounts
def test_a_full_disk_ends_it_with_a_sentence_and_keeps_what_was_done(tmp_path: Path) -> None:
    sweep = sweep_file(tmp_path, grid={"workload.batch": list(range(1, 41))})
    (tmp_path / "small").mkdir()
    words = " ".join(command(sweep, "-o", tmp_path / "r.csv", "--cache", "small/c"))
    script = f"""cd {tmp_path}; mount -t tmpfs -o size=64k none small
{words} 2>first; echo $? $(find small -name '*.json' | wc -l) $(find small -name '*.tmp' | wc -l)
mount -o remount,size=1m small; {words} 2>second; echo $?"""
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True,
                          text=True, check=True, timeout=LIMIT_S)
    status, kept, torn = map(int, done.stdout.splitlines()[0].split())
    says = (tmp_path / "first").read_text()
    assert (status, torn) == (2, 0), says
    assert 10 <= kept < 40
    assert "no space left on device" in says
    assert "Traceback" not in says
    assert f"{kept} of 40 points are stored" in (tmp_path / "second").read_text()
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 41


def test_a_point_that_makes_no_sense_is_a_line_with_an_error(tmp_path: Path) -> None:
    sweep = sweep_file(tmp_path, list=[{"scenarios[0].gpus": [8]}, {"scenarios[0].gpus": [9]}])
    done = run(sweep, "-o", tmp_path / "r.parquet")
    assert done.exit_code == 0
    good, bad = rows(tmp_path / "r.parquet")
    assert good["error"] is None
    assert "scenarios[0].gpus" in bad["error"]
    assert "1 point was refused" in done.output


@pytest.mark.parametrize(("keys", "says"), [
    ({"grid": {"workload.bach": [1]}}, "did you mean 'batch'"),
    ({"grid": {"workload.batch": [1, "x"]}}, "workload.batch"),
    ({"grid": {"hosts[7].count": [1]}}, "hosts has no entry '7'"),
    ({"random": {"points": 3, "keys": {"fabric.rate": {"low": "1Gbps", "high": "9GHz"}}}},
     "one unit for both"),
    ({"random": {"points": 3, "keys": {"fabric.rate": {"low": "1ms", "high": "9ms"}}}},
     "fabric.rate"),
    ({"list": [{}, {"sed": 1}]}, "did you mean 'seed'"),
    ({"scenarios": ["t"]}, "'t' is not a known scenario"),
    ({"objectives": {"image_per_s": "max"}}, "did you mean 'images_per_s'"),
    ({"topology": "none.yaml"}, "none.yaml"),
    ({"fidelity": "lab"}, "allowed: flow, packet")])
def test_a_wrong_sweep_is_one_sentence_and_runs_nothing(tmp_path: Path, keys: dict[str, Any],
                                                        says: str) -> None:
    done = run(sweep_file(tmp_path, **keys), "-o", tmp_path / "r.parquet")
    assert done.exit_code == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / ".harp-sweep").exists()
    assert not (tmp_path / "r.parquet").exists()


@pytest.mark.parametrize(("options", "says"), [
    (["-o", "r.txt"], "must end in one of .csv, .parquet"),
    (["-o", "r.csv", "--plot", "p.png"], "--plot needs two objectives"),
    (["-o", "r.csv", "--workers", "2", "--dask", "x"], "--workers is for this machine"),
    (["-o", "no/r.csv"], "there is no directory"),
    ([], "Missing option '-o'")])
def test_wrong_options_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                        options: list[str], says: str) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(sweep_file(tmp_path), *options)
    assert done.exit_code == 2
    assert says in done.stderr
    assert not (tmp_path / ".harp-sweep").exists()


def test_without_pyarrow_there_is_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = run(sweep_file(tmp_path), "-o", tmp_path / "r.parquet")
    assert done.exit_code == 2
    assert "harp-stack[sweep]" in done.stderr
    assert run(tmp_path / "sweep.yaml", "-o", tmp_path / "r.csv").exit_code == 0


def test_packets_can_be_swept(tmp_path: Path) -> None:
    sweep = sweep_file(tmp_path, fidelity="packet", list=[{"workload.batch": 32}],
                       set={"scenarios[0].stack": "harp", "hosts[0].gpus.count": 1})
    done = run(sweep, "-o", tmp_path / "r.parquet")
    assert done.exit_code == 0, done.output
    (row,) = rows(tmp_path / "r.parquet")
    assert row["error"] is None
    assert row["images_per_s"] > 0


@pytest.mark.parametrize(("keys", "says"), [
    ({"grid": {"workload.batch": [1, 2], "workload.bach": [3]}},
     "grid['workload.bach']: workload.bach: unknown key 'bach'"),
    ({"grid": {"workload.batch": [1, "two"]}},
     "grid['workload.batch']: workload.batch: found 'two'"),
    ({"set": {"seeed": 4}}, "set.seeed: seeed: unknown key 'seeed'"),
    ({"list": [{"seed": 1}, {"seed": 1, "fabric.spine": 2}]},
     "list[1]['fabric.spine']: fabric.spine: unknown key 'spine'"),
    ({"random": {"points": 2, "keys": {"seed": {"low": 1, "high": 9},
                                       "workload.batch": {"low": -3, "high": 5}}}},
     "random.keys['workload.batch']: workload.batch: found -3")])
def test_a_value_that_the_topology_cannot_have_is_named_where_it_stands(
        tmp_path: Path, keys: dict[str, Any], says: str) -> None:
    sweep = sweep_file(tmp_path, **keys)
    done = run(sweep, "-o", tmp_path / "r.csv")
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {sweep}:")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / ".harp-sweep").exists()
