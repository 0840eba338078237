"""SimAI's workload text: what ranks do by it, closed forms, groups, wrong files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from sim.answer.scenario import run_scenario
from sim.cluster.cluster import Cluster
from sim.run import main
from sim.schema import load
from sim.schema.input_errors import Problem, TopologyError
from sim.traces.aicb import job_of
from tests.support.cluster_files import ALPHA_S, RATE_BPS, topology, write

if TYPE_CHECKING:
    from pathlib import Path

    from sim.records.results import ScenarioResult

MIB = 1 << 20
NONE = "NONE 0"


def text(*layers: str, tensor: int = 1, expert: int = 1, pipeline: int = 1, ranks: int = 4,
         more: str = "") -> str:
    head = (f"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: {tensor} ep: {expert} "
            f"pp: {pipeline} vpp: 8 ga: 1 all_gpus: {ranks} checkpoints: 0 "
            f"checkpoint_initiates: 0{more}")
    return "\n".join([head, str(len(layers)), *layers]) + "\n"


def layer(forward: str = f"1000 {NONE}", inputs: str = f"1000 {NONE}",
          weights: str = f"1000 {NONE}") -> str:
    return "\t".join(f"layer -1 {forward} {inputs} {weights} 100".split())


def run(folder: Path, content: str, ranks: int = 4) -> ScenarioResult:
    (folder / "w.txt").write_text(content)
    path = write(folder, topology(hosts=ranks, workload={"trace": "w.txt"}))
    cluster = Cluster(load(path))
    (row,) = run_scenario(cluster, cluster.topology.scenarios[0], ranks)
    return row


def ring_s(nbytes: float, ranks: int, *, rounds: int = 2) -> tuple[float, float]:
    """Bounds of a ring's time: its bytes alone, and messages one after the other."""
    bytes_s = rounds * (ranks - 1) * nbytes / ranks * 8 / RATE_BPS
    return bytes_s, bytes_s + rounds * (ranks - 1) * ALPHA_S


def test_compute_alone_is_the_sum_of_its_times(tmp_path: Path) -> None:
    row = run(tmp_path, text(layer(), layer(weights=f"7000 {NONE}"), more=" pp_comm 0"))
    forward_ns, weights_ns, inputs_ns = 2000, 8000, 1000  # the first layer has no input gradient
    assert row.step_s == pytest.approx((forward_ns + weights_ns + inputs_ns) * 1e-9)
    assert row.efficiency == pytest.approx(1)


def test_what_editors_of_windows_write_is_read(tmp_path: Path) -> None:
    plain = text(layer(), layer())
    assert run(tmp_path, "\ufeff" + plain.replace("\n", "\r\n")).step_s == run(
        tmp_path, plain).step_s


def test_a_collective_of_the_forward_pass_is_waited_for(tmp_path: Path) -> None:
    row = run(tmp_path, text(layer(forward=f"1000 ALLREDUCE {64 * MIB}"), tensor=4))
    low, high = ring_s(64 * MIB, 4)
    assert 2e-6 + low < row.step_s <= (2e-6 + high) * 1.01


def test_a_collective_of_a_weight_gradient_runs_beside_the_rest(tmp_path: Path) -> None:
    last = layer(weights=f"1000 ALLREDUCE {MIB}")
    first = layer(weights=f"5000000 {NONE}")
    row = run(tmp_path, text(first, last))
    assert ring_s(MIB, 4)[1] < 5e-3
    assert row.step_s == pytest.approx(1e-9 * (2000 + 1000 + 1000 + 5_000_000))


def test_bytes_of_an_all_gather_are_those_of_the_whole(tmp_path: Path) -> None:
    row = run(tmp_path, text(layer(forward=f"1000 ALLGATHER {64 * MIB}"), tensor=4))
    low, high = ring_s(64 * MIB, 4, rounds=1)
    assert 2e-6 + low < row.step_s <= (2e-6 + high) * 1.01


@pytest.mark.parametrize(("collective", "place", "group"), [
    ("ALLREDUCE", 0, (4, 5)), ("ALLREDUCE", 2, (0, 2, 4, 6, 8, 10, 12, 14)),
    ("ALLTOALL_EP", 0, (4, 6)), ("REDUCESCATTER_DP_EP", 2, (0, 4, 8, 12))])
def test_endings_name_the_groups(collective: str, place: int, group: tuple[int, ...]) -> None:
    parts = [f"1 {NONE}"] * 3
    parts[place] = f"1 {collective} 4096"
    content = text(layer(*parts), tensor=2, expert=2, ranks=16).encode()
    trace = job_of(content, 16, 10_000)
    (op,) = (op for op in trace.ranks[4] if op.kind == "collective")
    assert trace.members(op.group) == group
    found = {trace.members(op.group) for ops in trace.ranks for op in ops
             if op.kind == "collective"}
    assert sorted(rank for ranks in found for rank in ranks) == list(range(16))


def test_a_group_of_one_and_no_bytes_send_nothing() -> None:
    content = text(layer(forward="1 ALLREDUCE 4096", inputs="1 ALLGATHER 0")).encode()
    assert all(op.kind != "collective" for op in job_of(content, 4, 100).ranks[0])


WRONG = {
    "another kind": (text(layer()).replace("HYBRID_TRANSFORMER_FWD_IN_BCKWD",
                                           "HYBRID_TRANSFORMER"), "of the kind"),
    "another count": (text(layer()).replace("\n1\n", "\n2\n"), "1 layers follow"),
    "no layers": (text(), "0 layers follow"),
    "one line": (text(layer()).splitlines()[0], "0 layers follow"),
    "another number of fields": (text("a -1 1 NONE 0"), "line 3 has 5 fields"),
    "an unknown collective": (text(layer(forward="1 ALLREDUCES 5")), "did you mean 'ALLREDUCE'?"),
    "a negative size": (text(layer(forward="1 ALLREDUCE -5")), "'-5' as time or size"),
    "a pipeline": (text(layer(), pipeline=2), "one stage stands for all"),
    "more GPUs": (text(layer(), ranks=8), "a job of 8 GPUs for 4 GPUs"),
    "no split": (text(layer(), tensor=3), "do not divide 4 GPUs"),
    "a missing key": (text(layer()).replace("ep: 1", ""), "line 1 has no ep"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_workload_is_one_sentence(tmp_path: Path, case: str) -> None:
    content, says = WRONG[case]
    (tmp_path / "w.txt").write_text(content)
    path = write(tmp_path, topology(hosts=4, workload={"trace": "w.txt"}))
    found = CliRunner().invoke(main, [str(path), "--json", str(tmp_path / "a.json")])
    assert found.exit_code == 2, found.output
    assert says in found.output
    assert found.output.count("\n") == 1
    assert not (tmp_path / "a.json").exists()


def test_a_job_that_is_too_long_is_refused() -> None:
    with pytest.raises(Problem, match="24 operations"):
        job_of(text(layer()).encode(), 4, 10)


def test_times_that_no_clock_has_room_for_are_refused(tmp_path: Path) -> None:
    parts = f"{10**18 - 1} {NONE}"
    with pytest.raises(TopologyError, match="all operations last"):
        run(tmp_path, text(layer(forward=parts), layer(forward=parts)))
