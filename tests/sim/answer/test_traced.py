"""A file whose workload is execution traces: rows, intervals, outputs, sweeps, wrong files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from sim import compare, run, sweep
from sim.answer.answer import answer
from sim.answer.scenario import run_scenario
from sim.cluster.cluster import Cluster
from sim.schema import load
from sim.schema.input_errors import TopologyError
from sim.sweeps.study import Study
from sim.traces.chakra_format import RECV, SEND, Attribute
from tests.sim.traces.test_replay import MIB, collective, compute, one_by_one_s, save, transfer
from tests.support.cluster_files import ALPHA_S, RATE_BPS, topology, write

if TYPE_CHECKING:
    from pathlib import Path

    from sim.traces.chakra_format import Node

STEP = [compute(1, 1000), collective(2, "all-reduce", MIB, 1), compute(3, 500, 1),
        compute(4, 250, 2, 3)]
"""Backward, an all-reduce beside the rest of it, and the optimizer."""


def file(folder: Path, *nodes: Node, ranks: int = 4, trace: Any = "traces/t", **more: Any) -> Path:
    (folder / "traces").mkdir(exist_ok=True)
    save(folder / "traces", *[list(nodes or STEP)] * ranks)
    return write(folder, topology(hosts=ranks, workload={"trace": trace}, **more))


def test_a_row_is_one_run_of_the_traces(tmp_path: Path) -> None:
    cluster = Cluster(load(file(tmp_path)))
    (row,) = run_scenario(cluster, cluster.topology.scenarios[0], 4)
    wait_s = 500e-6  # the ring of 6 messages is shorter than the compute beside it
    assert one_by_one_s(6, MIB / 4) < wait_s
    assert row.step_s == pytest.approx(1.75e-3)
    assert row.images_per_s == pytest.approx(1 / 1.75e-3)
    assert row.efficiency == pytest.approx(1.0)
    assert row.breakdown.exposed_s == pytest.approx(0, abs=1e-12)
    assert row.limits[0].name == "compute"


def test_exposed_time_is_what_the_gpu_waits_for(tmp_path: Path) -> None:
    cluster = Cluster(load(file(tmp_path, compute(1, 1000), collective(2, "all-reduce", MIB, 1),
                                compute(3, 250, 2))))
    (row,) = run_scenario(cluster, cluster.topology.scenarios[0], 4)
    assert row.breakdown.compute_s == pytest.approx(1.25e-3)
    assert row.breakdown.step_s == pytest.approx(row.step_s)
    assert 6 * MIB / 4 * 8 / 100e9 < row.breakdown.exposed_s < one_by_one_s(6, MIB / 4) * 1.01
    assert {limit.name for limit in row.limits} >= {"compute", "NIC"}


ON_CPU = (Attribute("is_cpu_op", "bool", True),)


def test_a_job_of_cpus_computes_between_its_messages(tmp_path: Path) -> None:
    """As PyTorch's traces over gloo: no GPU does anything."""
    cluster = Cluster(load(file(
        tmp_path, compute(1, 1000, attributes=ON_CPU), collective(2, "all-reduce", MIB, 1),
        compute(3, 250, 2, attributes=ON_CPU))))
    (row,) = run_scenario(cluster, cluster.topology.scenarios[0], 4)
    assert row.breakdown.compute_s == pytest.approx(1.25e-3)
    assert row.breakdown.step_s == pytest.approx(row.step_s)
    assert row.breakdown.exposed_transfer_s == pytest.approx(6 * MIB / 4 * 8 / RATE_BPS, rel=0.02)
    assert row.efficiency == 0


def test_a_stage_that_waits_for_those_before_it_does_not_wait_for_messages(tmp_path: Path) -> None:
    """Each computes 1 ms in its turn, and two of three hand their output on."""
    (tmp_path / "traces").mkdir()
    save(tmp_path / "traces", [compute(1, 1000), transfer(2, SEND, 1, MIB, 1)],
         [transfer(1, RECV, 0, MIB), compute(2, 1000, 1), transfer(3, SEND, 2, MIB, 2)],
         [transfer(1, RECV, 1, MIB), compute(2, 1000, 1)])
    cluster = Cluster(load(write(tmp_path, topology(hosts=3, workload={"trace": "traces/t"}))))
    (row,) = run_scenario(cluster, cluster.topology.scenarios[0], 3)
    assert row.breakdown.compute_s == pytest.approx(3e-3)
    assert row.breakdown.exposed_s == pytest.approx(2 * (ALPHA_S + MIB * 8 / RATE_BPS), rel=0.02)
    assert row.breakdown.exposed_transfer_s == pytest.approx(2 * MIB * 8 / RATE_BPS, rel=0.05)
    assert row.efficiency == pytest.approx(1e-3 / row.step_s, rel=1e-6)


def test_a_real_stack_gives_intervals_and_a_cost(tmp_path: Path) -> None:
    path = file(tmp_path, scenario={"stack": "kernel-tcp", "allreduce": "nccl"},
                prices={"hosts": {"h": 3}})
    topology_ = load(path)
    report = answer(Cluster(topology_), topology_.scenarios, draws=8, why=True)
    (row,) = report.scenarios
    assert row.interval is not None
    assert row.interval.low_images_per_s < row.images_per_s < row.interval.high_images_per_s
    assert any(cause.parameter.startswith("kernel-tcp.") for cause in row.causes)
    assert row.cost is not None
    assert row.cost.day == 4 * 3 * 24


def test_every_output_of_a_run_is_written(tmp_path: Path) -> None:
    path = file(tmp_path)
    made = CliRunner().invoke(run.main, [
        str(path), "--draws", "0", "--json", str(tmp_path / "a.json"), "--trace",
        str(tmp_path / "t.json"), "--html", str(tmp_path / "r.html"), "--plot",
        str(tmp_path / "p.png")])
    assert made.exit_code == 0, made.output
    assert "workload: has no effect" not in made.output
    (row,) = json.loads((tmp_path / "a.json").read_text())["scenarios"]
    assert row["images_per_s"] == pytest.approx(1 / 1.75e-3)
    names = [event["name"] for event in json.loads(
        (tmp_path / "t.json").read_text())["traceEvents"]]
    assert "compute 1" in names
    assert any(name.startswith("all-reduce 2") for name in names)
    assert "traces/t" in (tmp_path / "r.html").read_text()


def test_a_faster_network_is_another_answer_of_compare_and_sweep(tmp_path: Path) -> None:
    path = file(tmp_path, compute(1, 10), collective(2, "all-reduce", 64 * MIB, 1))
    other = tmp_path / "fast.yaml"
    other.write_text(path.read_text().replace("100000000000.0bps", "400Gbps"))
    found = CliRunner().invoke(compare.main, [str(path), str(other), "--draws", "0"])
    assert found.exit_code == 0, found.output
    assert "hosts[h].nics[eth].rate" in found.output
    grid = tmp_path / "s.yaml"
    grid.write_text("topology: t.yaml\ngrid:\n  hosts[0].nics[0].rate: [100Gbps, 400Gbps]\n")
    swept = CliRunner().invoke(sweep.main, [str(grid), "-o", str(tmp_path / "r.csv")])
    assert swept.exit_code == 0, swept.output
    lines = (tmp_path / "r.csv").read_text().splitlines()
    place = lines[0].split(",").index("images_per_s")
    slow, fast = (float(line.split(",")[place]) for line in lines[1:])
    assert 3.5 < fast / slow < 4.01


def test_other_traces_are_another_point_of_a_sweep(tmp_path: Path) -> None:
    path = file(tmp_path)
    study = Study(str(path), path.read_bytes())
    before = study.key(())
    moved = tmp_path / "other"
    moved.mkdir()
    again = file(moved, compute(1, 7))
    assert before != Study(str(again), again.read_bytes()).key(())


def test_traces_that_take_flops_run_at_the_gpus_rate(tmp_path: Path) -> None:
    node = compute(1, 5000, attributes=(Attribute("num_ops", "int64", 10**11),))
    cluster = Cluster(load(file(tmp_path, node, trace={"prefix": "traces/t", "by_flops": True})))
    (row,) = run_scenario(cluster, cluster.topology.scenarios[0], 4)
    assert row.step_s == pytest.approx(1e11 / 100e12)


@pytest.mark.parametrize(("scenario", "key"), [
    ({"routing": "plan"}, "routing"), ({"sync": {"every": 4}}, "sync")])
def test_options_that_a_replay_lacks_are_refused(tmp_path: Path, scenario: dict[str, Any],
                                                 key: str) -> None:
    cluster = Cluster(load(file(tmp_path, scenario=scenario)))
    with pytest.raises(TopologyError, match=rf"{key}.*no meaning for a replay"):
        run_scenario(cluster, cluster.topology.scenarios[0], 4)


def test_more_gpus_than_ranks_is_one_sentence(tmp_path: Path) -> None:
    path = file(tmp_path, scenario={"gpus": [2]})
    found = CliRunner().invoke(run.main, [str(path)])
    assert found.exit_code == 2
    assert "workload.trace: " in found.output
    assert "traces of 4 ranks for 2 GPUs" in found.output
