"""Traces made of our own steps: protobuf's bytes, the same time when replayed, groups, refusals."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from sim.answer.scenario import Run, job_traces, run_scenario
from sim.cluster.cluster import Cluster
from sim.schema import load
from sim.schema.input_errors import TopologyError
from sim.schema.parallel_keys import Parallel
from sim.step.groups import GROUPS, Groups
from sim.trace import main
from sim.traces.chakra_format import COLL, COLLECTIVES, COMP, read_trace, write_trace
from sim.traces.execution_trace import load_traces
from sim.traces.from_step import members
from tests.sim.traces.test_chakra_format import by_protobuf
from tests.support import ROOT
from tests.support.cluster_files import FREE, cluster, topology, write
from tests.support.levels import each_once

if TYPE_CHECKING:
    from pathlib import Path

FSDP: dict[str, Any] = {"model": "gpt2", "batch": 2, "framework": "free", "precision": "bf16"}


def written(folder: Path, source: Path, scenario: str | None = None) -> str:
    """Traces of a file's workload, at ``folder/t``."""
    chosen = [] if scenario is None else ["--scenario", scenario]
    found = CliRunner().invoke(main, [str(folder / "t"), "--topology", str(source), "--write",
                                      *chosen])
    assert found.exit_code == 0, found.output
    return found.output


def both_s(folder: Path, source: Path, scenario: str) -> tuple[float, float]:
    """Step of the workload itself, and of its traces."""
    written(folder, source, scenario)
    steps = []
    for changes in ((), (f"workload={{trace: {folder / 't'}}}",)):
        made = load(source, changes)
        chosen = next(one for one in made.scenarios if one.name == scenario)
        (row,) = run_scenario(Cluster(made), chosen, made.gpu_counts(chosen)[-1])
        steps.append(row.step_s)
    return steps[0], steps[1]


@pytest.mark.parametrize(("keys", "workload"), each_once([
    {}, {"streams": 2}, {"parallel": {"shard": "fsdp"}}, {"parallel": {"shard": "zero2"}},
    {"parallel": {"tensor": 2}}, {"parallel": {"tensor": 2, "shard": "fsdp"}},
    {"parallel": {"shard": "hsdp"}}, {"parallel": {"shard": "zero1", "gather_overlap": True}},
    {"parallel": {"tensor": 2, "sequence": True, "tensor_overlap": True}}],
    [{}, {"accumulation": 3}]))
def test_a_replay_takes_as_long_as_the_step(tmp_path: Path, keys: dict[str, Any],
                                            workload: dict[str, Any]) -> None:
    source = write(tmp_path, topology(hosts=2, gpus=4, workload=FSDP | workload, scenario=keys))
    own_s, replayed_s = both_s(tmp_path, source, "s")
    assert replayed_s == pytest.approx(own_s, rel=0.02)


def test_a_replay_has_all_tensor_groups_over_hosts(tmp_path: Path) -> None:
    """A step simulates one of the two."""
    source = write(tmp_path, topology(hosts=4, gpus=2, workload=FSDP,
                                      scenario={"parallel": {"tensor": 4}}))
    own_s, replayed_s = both_s(tmp_path, source, "s")
    assert replayed_s == pytest.approx(own_s, rel=0.02)


@pytest.mark.parametrize("chunks", [1, 4])
def test_tokens_travel_to_experts_in_a_replay_as_well(tmp_path: Path, chunks: int) -> None:
    model = {"layers": 4, "width": 512, "heads": 8, "vocabulary": 1000,
             "experts": {"count": 8, "top_k": 2, "ffn": 2048}}
    source = write(tmp_path, topology(hosts=2, gpus=4, scenario={"expert_chunks": chunks},
                                      workload=FSDP | {"model": model, "sequence": 512}))
    own_s, replayed_s = both_s(tmp_path, source, "s")
    assert replayed_s == pytest.approx(own_s, rel=0.02)


@pytest.mark.parametrize("scenario", ["Horovod+TCP", "dense 2D+HARP", "2D fp16+TCP"])
def test_a_shipped_clusters_replay_is_near_its_row(tmp_path: Path, scenario: str) -> None:
    source = ROOT / "topologies" / "taco-vgg16-v100-25g.yaml"
    own_s, replayed_s = both_s(tmp_path, source, scenario)
    assert replayed_s == pytest.approx(own_s, rel=0.03)


def test_the_bytes_are_protobufs(tmp_path: Path) -> None:
    source = write(tmp_path, topology(hosts=2, gpus=4, workload=FSDP,
                                      scenario={"parallel": {"tensor": 2}}))
    written(tmp_path, source)
    for rank in range(8):
        content = (tmp_path / f"t.{rank}.et").read_bytes()
        about, nodes = read_trace(content)
        assert by_protobuf(about, nodes) == content
        assert write_trace(about, nodes) == content


def test_files_hold_what_a_step_sends_and_computes(tmp_path: Path) -> None:
    made = cluster(tmp_path, hosts=4)
    traces = job_traces(made, made.topology.scenarios[0])
    network = made.topology.workload.network
    sent = sum(int(node.get("comm_size")) for node in traces.ranks[0] if node.type == COLL)
    assert sent == 4 * sum(tensor.elements for tensor in network.tensors)
    assert {COLLECTIVES[node.get("comm_type")] for node in traces.ranks[0]
            if node.type == COLL} == {"all-reduce"}
    flops = sum(node.get("num_ops", 0) for node in traces.ranks[0] if node.type == COMP)
    work = 128 * (network.forward_flops + network.backward_flops)
    assert flops == pytest.approx(work, rel=1e-3)
    seconds = sum(node.duration_us for node in traces.ranks[0]
                  if not node.get("is_cpu_op")) * 1e-6
    assert seconds == pytest.approx(work / 100e12, abs=1e-6)


def test_groups_lie_beside_the_traces(tmp_path: Path) -> None:
    source = write(tmp_path, topology(hosts=2, gpus=4, workload=FSDP,
                                      scenario={"parallel": {"tensor": 2}}))
    assert "6 groups" in written(tmp_path, source)
    groups = json.loads((tmp_path / "t.groups.json").read_text())
    assert sorted(groups.values()) == [[0, 1], [0, 2, 4, 6], [1, 3, 5, 7], [2, 3], [4, 5], [6, 7]]
    named = load_traces(tmp_path / "t", ranks=8).groups
    given = load_traces(tmp_path / "t", ranks=8, groups=tmp_path / "t.groups.json").groups
    assert {name: named[name] for name in given} == given


@pytest.mark.parametrize("layout", [
    Parallel(), Parallel(tensor=2), Parallel(tensor=2, context=2), Parallel(expert=4),
    Parallel(shard="hsdp", tensor=2), Parallel(shard="hsdp", replicate=2),
    Parallel(shard="hsdp", tensor=2, replicate=8)])
@pytest.mark.parametrize("group", [group for group in GROUPS if group != "stages"])
def test_every_rank_is_in_one_group_of_each_kind(layout: Parallel, group: Any) -> None:
    groups = Groups(layout, 16, 4)
    found = {members(groups, group, rank) for rank in range(16)}
    assert sorted(rank for ranks in found for rank in ranks) == list(range(16))
    assert all(rank in members(groups, group, rank) for rank in range(16))
    assert {tuple(ranks) for ranks in groups.of(group)} <= found


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "pipeline": ({"scenario": {"parallel": {"pipeline": 2}}}, "one stage of a pipeline"),
    "sync": ({"scenario": {"sync": {"every": 4}}}, "meet rarely"),
    "topk": ({"scenario": {"allreduce": "light", "light": {"LIGHT_TOPK_ALLREDUCE": 1}}},
             "largest elements"),
    "launches": ({"frameworks": {"free": FREE | {"launch_per_layer": "1us"}}}, "one by one"),
    "jobs": ({"jobs": [{"name": "a", "hosts": ["h-0", "h-1"]}]}, "no traces can be made of it"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_job_that_traces_cannot_hold_is_one_sentence(tmp_path: Path, case: str) -> None:
    keys, says = REFUSED[case]
    workload = FSDP | ({"accumulation": 4} if case == "pipeline" else {})
    source = write(tmp_path, topology(hosts=2, gpus=2, **{"workload": workload} | keys))
    found = CliRunner().invoke(main, [str(tmp_path / "out" / "t"), "--topology", str(source),
                                      "--write"])
    assert found.exit_code == 2, found.output
    assert says in found.output
    assert found.output.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_run_of_traces_makes_none(tmp_path: Path) -> None:
    made = cluster(tmp_path, hosts=2, workload={"trace": "traces/t"})
    with pytest.raises(TopologyError, match="no traces can be made of it"):
        job_traces(made, made.topology.scenarios[0])


def test_a_full_disk_leaves_no_part_of_a_job(tmp_path: Path,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    from harp.cli import io

    source = write(tmp_path, topology(hosts=4))
    flushed: list[int] = []

    def full(descriptor: int) -> None:
        if len(flushed) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flushed.append(descriptor)

    monkeypatch.setattr(io.os, "fsync", full)
    found = CliRunner().invoke(main, [str(tmp_path / "t"), "--topology", str(source), "--write"])
    assert found.exit_code in (1, 2)
    assert "no space left" in found.output
    assert list(tmp_path.iterdir()) == [source]
    assert len(flushed) == 2


def test_the_step_of_one_gpu_has_no_collectives(tmp_path: Path) -> None:
    made = cluster(tmp_path, hosts=1)
    traces = job_traces(made, made.topology.scenarios[0])
    assert all(node.type != COLL for node in traces.ranks[0])
    assert Run(made, made.topology.scenarios[0], 1).go()[0].step_s == pytest.approx(
        sum(node.duration_us for node in traces.ranks[0]) * 1e-6, rel=1e-4)
