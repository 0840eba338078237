"""Traces replayed: closed forms, dependencies, groups, and wrong traces in one sentence."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from sim.trace import main
from sim.traces.chakra_format import (
    COLL,
    COLLECTIVES,
    COMP,
    METADATA,
    RECV,
    SEND,
    Attribute,
    Metadata,
    Node,
    Values,
    write_trace,
)
from sim.traces.execution_trace import load_traces
from sim.traces.replay import Means, Replay, replay
from tests.support.cluster_files import ALPHA_S, RATE_BPS, cluster, topology, write

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


def compute(number: int, us: int, *after: int, **more: Any) -> Node:
    return Node(number, f"compute {number}", COMP, data_deps=after, duration_us=us, **more)


def collective(number: int, name: str, size: int, *after: int, group: str | None = None) -> Node:
    attributes = [Attribute("comm_type", "int64", COLLECTIVES.index(name)),
                  Attribute("comm_size", "uint64", size)]
    if group is not None:
        attributes.append(Attribute("pg_name", "string", group))
    return Node(number, f"{name} {number}", COLL, data_deps=after, attributes=tuple(attributes))


def transfer(number: int, kind: int, peer: int, size: int, *after: int, tag: int = 0) -> Node:
    return Node(number, f"transfer {number}", kind, data_deps=after, attributes=(
        Attribute("comm_dst" if kind == SEND else "comm_src", "int32", peer),
        Attribute("comm_size", "int64", size), Attribute("comm_tag", "int32", tag)))


def save(folder: Path, *ranks: list[Node]) -> Path:
    for rank, nodes in enumerate(ranks):
        (folder / f"t.{rank}.et").write_bytes(write_trace(Metadata("0.0.4"), nodes))
    return folder / "t"


def run(folder: Path, *ranks: list[Node], deps: Any = "data+ctrl", groups: Path | None = None,
        by_flops: bool = False, **scenario: Any) -> Replay:
    made = cluster(folder, hosts=len(ranks), scenario=scenario)
    trace = load_traces(save(folder, *ranks), ranks=len(ranks), deps=deps, groups=groups)
    return replay(made, made.topology.scenarios[0], trace, Means(by_flops=by_flops))


def one_by_one_s(messages: int, nbytes: float) -> float:
    """Messages of ``nbytes`` that wait for one another, by latency and rate."""
    return messages * (ALPHA_S + nbytes * 8 / RATE_BPS)


@pytest.mark.parametrize(("name", "messages", "share"), [
    ("all-reduce", 6, 1 / 4), ("reduce-scatter", 3, 1 / 4), ("all-gather", 3, 1)])
def test_a_collective_takes_what_its_ring_takes(tmp_path: Path, name: str, messages: int,
                                                share: float) -> None:
    """The bytes are those that a rank puts in, as ASTRA-sim counts them."""
    found = run(tmp_path, *[[collective(1, name, MIB)]] * 4, allreduce="ring")
    nbytes = MIB * share
    bytes_s = messages * nbytes * 8 / RATE_BPS
    assert bytes_s < found.total_s <= one_by_one_s(messages, nbytes) * 1.01
    assert all(rank.compute_s == 0 for rank in found.ranks)


def test_a_barrier_and_an_all_to_all_end(tmp_path: Path) -> None:
    barrier = run(tmp_path, *[[collective(1, "barrier", 0)]] * 4)
    assert 0 < barrier.total_s < 1e-3
    exchanged = run(tmp_path, *[[collective(1, "all-to-all", 4 * MIB)]] * 4)
    assert exchanged.total_s == pytest.approx(3 * MIB * 8 / RATE_BPS + ALPHA_S, rel=0.05)


@pytest.mark.parametrize(("mib", "busiest"), [
    ((1, 2, 3, 4), 3), ((4, 0, 0, 0), 3), ((4, 4, 4, 0), 3), ((2, 2, 2, 2.001), 1.5)])
def test_ranks_may_put_unequal_bytes_into_an_all_to_all(
        tmp_path: Path, mib: tuple[float, ...], busiest: float) -> None:
    """It takes as long as the busiest port: what it sends to three peers, or they to it."""
    found = run(tmp_path, *[[collective(1, "all-to-all", round(each * MIB))] for each in mib])
    assert found.total_s == pytest.approx(busiest * MIB * 8 / RATE_BPS + ALPHA_S, rel=0.05)
    assert len({rank.total_s for rank in found.ranks}) == 1


def test_unequal_counts_of_too_many_ranks_are_one_sentence(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.traces.replay.MOST_UNEVEN", 3)
    path = write(tmp_path, topology(hosts=4))
    done = invoke(save(tmp_path, *[[collective(1, "all-to-all", (rank + 1) * MIB)]
                                   for rank in range(4)]), "--topology", path)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.output
    assert "of unequal counts has 4 ranks; allowed: at most 3" in done.stderr


def test_compute_runs_one_at_a_time_and_beside_the_network(tmp_path: Path) -> None:
    nodes = [compute(1, 100), compute(2, 300), collective(3, "all-reduce", MIB, 1)]
    found = run(tmp_path, *[nodes] * 2)
    alone = run(tmp_path, *[[collective(3, "all-reduce", MIB)]] * 2).total_s
    assert found.total_s == pytest.approx(max(400e-6, 100e-6 + alone))
    assert found.ranks[0].compute_s == pytest.approx(400e-6)


def test_a_cpu_has_a_queue_of_its_own(tmp_path: Path) -> None:
    cpu = (Attribute("is_cpu_op", "bool", True),)
    nodes = [compute(1, 100), compute(2, 150, attributes=cpu), compute(3, 150, attributes=cpu)]
    found = run(tmp_path, *[nodes] * 2)
    assert found.total_s == pytest.approx(300e-6)
    assert found.ranks[0].compute_s == pytest.approx(100e-6)


def test_a_collective_waits_for_the_last_rank(tmp_path: Path) -> None:
    late = [compute(1, 500), collective(2, "all-reduce", MIB, 1)]
    soon = [compute(1, 100), collective(2, "all-reduce", MIB, 1)]
    alone = run(tmp_path, *[[collective(2, "all-reduce", MIB)]] * 2).total_s
    found = run(tmp_path, late, soon)
    assert found.total_s == pytest.approx(500e-6 + alone)
    assert found.ranks[1].exposed_s == pytest.approx(400e-6 + alone)


def test_several_collectives_share_the_network(tmp_path: Path) -> None:
    one = run(tmp_path, *[[collective(1, "all-reduce", 64 * MIB)]] * 2).total_s
    both = run(tmp_path, *[[collective(1, "all-reduce", 64 * MIB),
                            collective(2, "all-reduce", 64 * MIB)]] * 2)
    assert both.total_s == pytest.approx(2 * one, rel=0.01)
    starts = {span.start_s for span in both.spans}
    assert min(starts) == 0
    assert sum(span.start_s < 1e-9 for span in both.spans) == 2


@pytest.mark.parametrize("deps", ["data", "data+ctrl"])
def test_control_dependencies_hold_back_if_asked(tmp_path: Path, deps: Any) -> None:
    nodes = [compute(1, 100), Node(2, "ar", COLL, ctrl_deps=(1, 99), attributes=collective(
        2, "all-reduce", MIB).attributes)]
    alone = run(tmp_path, *[[collective(2, "all-reduce", MIB)]] * 2).total_s
    found = run(tmp_path, *[nodes] * 2, deps=deps)
    assert found.total_s == pytest.approx(alone + (100e-6 if deps == "data+ctrl" else 0))
    assert load_traces(tmp_path / "t", ranks=2, deps=deps).dropped == (2 if "+" in deps else 0)


def test_groups_run_side_by_side(tmp_path: Path) -> None:
    groups = tmp_path / "groups.json"
    groups.write_text(json.dumps({"1": [0, 1], "2": [2, 3]}))
    ranks = [[collective(1, "all-reduce", MIB, group="1" if rank < 2 else "2")]
             for rank in range(4)]
    found = run(tmp_path, *ranks, groups=groups)
    (tmp_path / "pair").mkdir()
    pair = run(tmp_path / "pair", *[[collective(1, "all-reduce", MIB)]] * 2).total_s
    assert found.total_s == pytest.approx(pair)


@pytest.mark.parametrize("name", ["1", "mesh_tp"])
def test_a_name_may_mean_other_ranks_in_other_files(tmp_path: Path, name: str) -> None:
    """As PyTorch names the parts of a group that it splits."""
    def rank(members: list[int]) -> list[Node]:
        init = Node(9, "## process_group:init ##", METADATA, inputs=Values(
            json.dumps([{"pg_name": name, "ranks": members}])))
        return [init, collective(1, "all-reduce", MIB, group=name)]

    found = run(tmp_path, *[rank([0, 1])] * 2, *[rank([2, 3])] * 2)
    (tmp_path / "pair").mkdir()
    pair = run(tmp_path / "pair", *[[collective(1, "all-reduce", MIB)]] * 2).total_s
    assert found.total_s == pytest.approx(pair)


def test_a_receive_needs_no_size(tmp_path: Path) -> None:
    receive = Node(1, "r", RECV, attributes=(Attribute("comm_src", "int32", 0),))
    found = run(tmp_path, [transfer(1, SEND, 1, MIB)], [receive])
    assert found.total_s == pytest.approx(ALPHA_S + MIB * 8 / RATE_BPS, rel=0.02)


def test_a_receive_ends_when_its_bytes_are_there(tmp_path: Path) -> None:
    sender = [compute(1, 200), transfer(2, SEND, 1, MIB, 1)]
    receiver = [transfer(1, RECV, 0, MIB), compute(2, 50, 1)]
    found = run(tmp_path, sender, receiver)
    moved = ALPHA_S + MIB * 8 / RATE_BPS
    assert found.ranks[1].total_s == pytest.approx(250e-6 + moved, rel=0.02)
    late = run(tmp_path, [transfer(1, SEND, 1, MIB)],
               [compute(1, 900), transfer(2, RECV, 0, MIB, 1)])
    assert late.ranks[1].total_s == pytest.approx(900e-6)


def test_flops_stand_in_where_no_time_was_recorded(tmp_path: Path) -> None:
    work = (Attribute("num_ops", "int64", 10**10),)  # at 100 TFLOP/s: 100 us
    nodes = [compute(1, 0, attributes=work)]
    assert run(tmp_path, *[nodes] * 2).total_s == pytest.approx(100e-6)
    timed = [compute(1, 30, attributes=work)]
    assert run(tmp_path, *[timed] * 2).total_s == pytest.approx(30e-6)
    assert run(tmp_path, *[timed] * 2, by_flops=True).total_s == pytest.approx(100e-6)


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


AR = collective(1, "all-reduce", MIB)
BAD: dict[str, tuple[list[list[Node]], str]] = {
    "a circle": ([[compute(1, 5, 2), compute(2, 5, 1)]] * 2, "waits for itself, in a circle"),
    "a circle of control": ([[compute(1, 5, 2), Node(2, "x", COMP, ctrl_deps=(1,))]] * 2,
                            "allowed: --deps data"),
    "an id twice": ([[compute(1, 5), compute(1, 5)]] * 2, "two nodes have the id 1"),
    "a parent that is not there": ([[compute(1, 5, 7)]] * 2, "waits for the data of node 7"),
    "an unknown type": ([[Node(1, "x", 9)]] * 2, "has the type 9"),
    "a gather": ([[collective(1, "gather", 8)]] * 2, "a collective of the type gather"),
    "no size": ([[Node(1, "x", COLL, attributes=AR.attributes[:1])]] * 2, "has no comm_size"),
    "a rank too few": ([[AR]], "traces of 1 ranks for 2 GPUs"),
    "a rank too many": ([[AR]] * 3, "traces of 3 ranks for 2 GPUs"),
    "an unknown group": ([[collective(1, "all-reduce", 8, group="5")]] * 2, "of the group '5'"),
    "ranks that do not agree": ([[AR], [collective(1, "all-reduce", 9)]],
                                "is all-reduce of"),
    "a name of two groups": ([[Node(number, "process_group:init", METADATA, inputs=Values(
        json.dumps([{"pg_name": "1", "ranks": [number]}]))) for number in (0, 1)]] * 2,
        "t.0.et: the group '1' is 1 and 0; allowed: one meaning of a name"),
    "a rank that never comes": ([[AR], []], "to which 1 of 2 ranks have come"),
    "a receive without a send": ([[transfer(1, RECV, 1, 8)], []], "whose send never comes"),
    "a peer that is not there": ([[transfer(1, SEND, 5, 8)], []], "has rank 5 as peer"),
    "itself as peer": ([[transfer(1, SEND, 0, 8)], []], "has rank 0 as peer"),
}


def test_several_ranks_that_do_not_agree_are_one_sentence(tmp_path: Path) -> None:
    """They fail at the same time, each in a process of the simulation."""
    path = write(tmp_path, topology(hosts=4))
    done = invoke(save(tmp_path, *[[collective(1, "all-reduce", (rank + 1) * MIB)]
                                   for rank in range(4)]), "--topology", path)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.output
    assert "is all-reduce of" in done.stderr


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_trace_is_one_sentence(tmp_path: Path, case: str) -> None:
    ranks, says = BAD[case]
    path, answer = write(tmp_path, topology(hosts=2)), tmp_path / "out.json"
    done = invoke(save(tmp_path, *ranks), "--topology", path, "--json", answer)
    assert done.exit_code == 2, done.output
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not answer.exists()


@pytest.mark.parametrize(("node", "says"), [
    (compute(1, 2**64 - 1), "all operations last 1.84e+13 s; allowed: at most 1e+09 s a rank"),
    (collective(1, "all-reduce", 2**64 - 1), "all operations send 1.84e+19 B; allowed: at most"),
    (Node(1, "x", COMP, attributes=(Attribute("num_ops", "uint64", 2**63),)), None)])
@pytest.mark.parametrize("fidelity", ["flow", "packet"])
def test_sums_that_no_clock_has_room_for_are_refused(tmp_path: Path, node: Node, says: str | None,
                                                     fidelity: str) -> None:
    path = write(tmp_path, topology(hosts=2, stacks={}, frameworks={}, workload={
        "model": "vgg16", "batch": 8}, scenario={"stack": "kernel-tcp"}))
    done = invoke(save(tmp_path, [node], [node]), "--topology", path, "--fidelity", fidelity)
    assert (done.exit_code, done.stderr.count("\n")) == ((2, 1) if says else (0, 0)), done.stderr
    assert (says or "") in done.stderr
