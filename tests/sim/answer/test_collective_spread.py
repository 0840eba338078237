"""``--collective``: intervals of times, what they are due to, and a file without a workload."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from sim.answer.collective_bench import measure
from sim.answer.collective_spread import Question, answer
from sim.answer.hidden import unknown_driver
from sim.answer.margins import COLLECTIVES
from sim.answer.scenario import Settings
from sim.cluster.cluster import Cluster
from sim.run import main
from sim.schema import load
from tests.support import ROOT
from tests.support.cluster_files import IDEAL, topology, write
from tests.support.levels import long_except

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 64 << 20


def figure(value: float, low: float, high: float) -> dict[str, str]:
    return {"value": f"{value}s", "low": f"{low}s", "high": f"{high}s", "confidence": "assumed",
            "source": "this test"}


STACKS = {"ideal": {**IDEAL, "threads": 1, "cost_per_byte": figure(2e-10, 1e-10, 4e-10)}}
"""A stack whose one thread is the bottleneck at any cost of its interval."""


def question(tmp_path: Path, collective: str = "allreduce", **top: object) -> Question:
    made = Cluster(load(write(tmp_path, topology(stacks=STACKS, **top))))
    return Question(made, collective, [SIZE], made.topology.scenarios[0], "ideal")


def test_an_interval_is_that_of_the_cost_which_decides(tmp_path: Path) -> None:
    (row,) = [row for row in answer(question(tmp_path), 64).rows if row.algorithm == "ring"]
    assert row.interval is not None
    # Uniform in the logarithm on either side of the median: P10 and P90 are 0.8 of the way out.
    slow, middle, fast = COLLECTIVES.move(2 ** -0.8, 1.0, 2 ** 0.8)
    assert row.interval.low_s / row.time_s == pytest.approx(1 / fast, rel=0.05)
    assert row.interval.median_s / row.time_s == pytest.approx(1 / middle, rel=0.05)
    assert row.interval.high_s / row.time_s == pytest.approx(1 / slow, rel=0.05)
    assert row.busbw_interval is not None
    assert row.busbw_interval[0] == pytest.approx(row.busbw * row.time_s / row.interval.high_s)


def test_the_cause_is_named_with_its_ends(tmp_path: Path) -> None:
    (row,) = [row for row in answer(question(tmp_path), 0, why=True).rows
              if row.algorithm == "ring"]
    (cause,) = row.causes
    assert cause.parameter == "ideal.cost_per_byte"
    assert cause.at_low / row.busbw == pytest.approx(2 ** 0.8, rel=0.01)
    assert cause.at_high / row.busbw == pytest.approx(2 ** -0.8, rel=0.01)


def test_limits_add_up_to_the_time(tmp_path: Path) -> None:
    for row in answer(question(tmp_path), 0, explain=True).rows:
        assert sum(limit.seconds for limit in row.limits) == pytest.approx(row.time_s)
        assert row.limits[0].name.startswith("network thread")


def test_unknown_connections_are_drawn_and_named() -> None:
    """Behind a VPC whose file gives no driver NCCL may open one socket or many."""
    path = ROOT / "topologies" / "cloud-vpc-25g-burst.yaml"
    made = Cluster(load(path))
    assert unknown_driver(made.topology)
    number = [each.stack for each in made.topology.scenarios].index("kernel-tcp")
    asked = Question(made, "allreduce", [SIZE], made.topology.scenarios[number], "kernel-tcp")
    rows = answer(asked, 12, why=True).rows
    assert any(cause.parameter == "helpers and sockets" for row in rows for cause in row.causes)


@pytest.mark.parametrize("name", long_except(
    ["taco-vgg16-v100-25g", "rail-h100-8x400g", "leaf-spine-2to1"],
    "taco-vgg16-v100-25g", "rail-h100-8x400g"))
def test_the_answer_lies_in_its_own_interval(name: str) -> None:
    made = Cluster(load(ROOT / "topologies" / f"{name}.yaml"))
    scenario = made.topology.scenarios[-1]
    asked = Question(made, "allreduce", [1 << 16, SIZE], scenario, scenario.stack)
    for row in answer(asked, 8).rows:
        assert row.interval is not None
        assert row.interval.low_s <= row.time_s <= row.interval.high_s


def test_frameworks_take_no_part(tmp_path: Path) -> None:
    made = question(tmp_path, workload={"model": "vgg16", "batch": 1, "framework": "horovod"})
    assert {unknown.name for unknown in made.unknowns} == {"ideal.cost_per_byte",
                                                           "rdma.memory_per_byte"}


def test_a_draw_has_source_ports_of_its_own() -> None:
    """Several flows between leaves: which spine a hash gives them decides the time."""
    made = Cluster(load(ROOT / "topologies" / "leaf-spine-2to1.yaml"))
    times = {measure(made, "allreduce", [SIZE], settings=Settings(seed=seed),
                     algorithms=["halving-doubling"]).rows[0].time_s for seed in range(4)}
    assert len(times) > 1


def test_parameters_that_the_file_fits_are_fitted_again() -> None:
    """The flagship fits its stack to two hosts, so that an allreduce there is known better."""
    path = ROOT / "topologies" / "taco-vgg16-v100-25g.yaml"
    made = Cluster(load(path))
    asked = Question(made, "allreduce", [SIZE], made.topology.scenarios[0], "taco-tcp")
    assert asked.refits
    assert "taco-tcp.cost_per_byte" not in {unknown.name for unknown in asked.unknowns}
    other = replace(asked, stack="kernel-tcp")
    assert not other.refits
    assert "kernel-tcp.cost_per_byte" in {unknown.name for unknown in other.unknowns}


def bare(tmp_path: Path) -> str:
    data = topology(stacks=STACKS)
    del data["workload"]
    return str(write(tmp_path, data))


def test_a_file_without_a_workload_answers_collectives(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    done = CliRunner().invoke(main, [bare(tmp_path), "--collective", "allreduce", "--sizes", "1MiB",
                                     "--draws", "8", "--why", "--explain", "--json", str(out)])
    assert done.exit_code == 0, done.output
    assert "P10" in done.output
    assert "bottleneck" in done.output
    rows = json.loads(out.read_text())["rows"]
    assert all(row["interval"]["draws"] == 8 for row in rows)
    assert {cause["parameter"] for row in rows for cause in row["causes"]} == {
        "ideal.cost_per_byte"}


def test_a_file_without_a_workload_cannot_train(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, [bare(tmp_path)])
    assert done.exit_code == 2
    assert "has no workload, so that nothing can be trained" in done.output
    assert "workload: {trace: ...}" in done.output


@pytest.mark.parametrize(("hosts", "gpus", "flows"), [
    (1100, 1, "1,208,900"), (400, 8, "10,236,800")])
def test_more_flows_than_can_be_simulated_are_refused(tmp_path: Path, hosts: int, gpus: int,
                                                      flows: str) -> None:
    path = write(tmp_path, topology(hosts=hosts, gpus=gpus))
    done = CliRunner().invoke(main, [str(path), "--collective", "alltoall", "--sizes", "1MiB"])
    assert done.exit_code == 2
    assert f"{flows} flows at once in an all-to-all" in done.output
    assert done.output.count("\n") == 1
