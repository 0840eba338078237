"""NCCL's tuner: what it makes of NCCL's cost tables, by a client that asks as NCCL does.

The client is `tests/cnet/nccl/test_tuner.c`, which opens the plugin with the table of each version.
What a table means is stated a second time here, in `expected`.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from harp.collectives.tuning import Tuning
from lab.c_programs import SANITIZED, build, library, run
from lab.nccl_pair import harp
from sim.answer.collective_bench import parse_sizes
from sim.answer.nccl_tuning import tune
from sim.cluster.cluster import Cluster
from sim.schema import load
from tests.support import PATIENCE_S, ROOT
from tests.support.json_schemas import validate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

COLLECTIVES = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")
VERSIONS = (4, 5, 6)
NONE = -1.0
RANKS, NODES = 16, 2
SCHEMA = json.loads((ROOT / "docs" / "use" / "harp-tuning-1.schema.json").read_text())

Row = dict[str, Any]


class Question(NamedTuple):
    """A collective and NCCL's costs, row by row of its table."""

    collective: str
    nbytes: int
    costs: tuple[float, ...]
    algorithms: int = len(ALGORITHMS)
    protocols: int = len(PROTOCOLS)


class Said(NamedTuple):
    """Channels and costs of each answer, and the lines of the log."""

    answers: list[tuple[int, tuple[float, ...]]]
    log: list[str]

    @property
    def warnings(self) -> list[str]:
        return [line for line in self.log if line.startswith("warn: ")]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = ["tests/cnet/nccl/test_tuner.c", "cnet/nccl/tuner_table.c", "cnet/nccl/json_reader.c",
               str(library())]
    return build(tmp_path_factory.mktemp("tuner") / "client", sources,
                 [*SANITIZED, "-Wl,--no-as-needed", "-ldl"])


def row(collective: str, least: int, most: int, algorithm: str, protocol: str,
        channels: int = 0) -> Row:
    return {"collective": collective, "min_bytes": least, "max_bytes": most,
            "algorithm": algorithm, "protocol": protocol, "channels": channels}


def table(*rows: Row, ranks: int = RANKS, nodes: int = NODES) -> dict[str, Any]:
    return {"format": "harp-tuning-1", "source": {"kind": "by hand"},
            "communicators": [{"ranks": ranks, "nodes": nodes, "rows": list(rows)}]}


def ask(client: Path, questions: Sequence[Question], version: int = 6, *, ranks: int = RANKS,
        nodes: int = NODES, **settings: str) -> Said:
    lines = "".join(
        f"{COLLECTIVES.index(one.collective)} {one.nbytes} {one.algorithms} {one.protocols} "
        f"{' '.join(f'{cost:.9g}' for cost in one.costs)}\n" for one in questions)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HARP_")}
    done = subprocess.run(
        [client, "ask", harp(), str(version), str(ranks), str(nodes)], input=lines, text=True,
        capture_output=True, check=False, timeout=PATIENCE_S,
        env={**kept, "HARP_CONF_FILE": "/dev/null", **settings})
    assert done.returncode == 0, done.stderr
    answers = []
    for line in done.stdout.splitlines():
        channels, *costs = line.split()
        answers.append((int(channels), tuple(map(float, costs))))
    assert len(answers) == len(questions)
    return Said(answers, done.stderr.splitlines())


def expected(rows: Sequence[Row], question: Question) -> tuple[int, tuple[float, ...]]:
    """The first row whose size fits and whose cell can be had becomes the cheapest."""
    costs = list(question.costs)
    for one in rows:
        algorithm, protocol = (ALGORITHMS.index(one["algorithm"]),
                               PROTOCOLS.index(one["protocol"]))
        cell = algorithm * question.protocols + protocol
        if (one["collective"] == question.collective
                and one["min_bytes"] <= question.nbytes <= one["max_bytes"]
                and algorithm < question.algorithms and protocol < question.protocols
                and costs[cell] >= 0):
            costs[cell] = 0.0
            return one["channels"], tuple(costs)
    return 0, tuple(costs)


def costs_of(*forbidden: str, algorithms: int = 7) -> tuple[float, ...]:
    """A table of NCCL's, in which "Tree LL" and the like are not to be had."""
    return tuple(NONE if f"{algorithm} {protocol}" in forbidden else 10.0 + number
                 for number, (algorithm, protocol) in enumerate(
                     (a, p) for a in ALGORITHMS[:algorithms] for p in PROTOCOLS))


SOME = (row("AllReduce", 0, 8191, "Tree", "LL", 2),
        row("AllReduce", 8192, 1 << 20, "Ring", "LL128"),
        row("AllReduce", 8192, 1 << 20, "Ring", "Simple", 8),
        row("AllGather", 0, 99, "PAT", "Simple"))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_chooses_by_the_table(client: Path, tmp_path: Path, version: int) -> None:
    file = tmp_path / "tuning.json"
    file.write_text(json.dumps(table(*SOME)))
    sizes = (0, 1, 99, 100, 8191, 8192, 1 << 20, (1 << 20) + 1, 1 << 40)
    questions = [Question(collective, size, costs_of()) for size in sizes
                 for collective in COLLECTIVES]
    said = ask(client, questions, version, HARP_TUNER=str(file))
    assert said.answers == [expected(SOME, one) for one in questions]
    assert len(set(said.answers)) == 4
    assert said.warnings == []


@pytest.mark.parametrize("version", VERSIONS)
def test_choices_forbidden_by_nccl_stay_so(client: Path, tmp_path: Path, version: int) -> None:
    """And the next row that fits counts; without one NCCL chooses, and a line says so."""
    file = tmp_path / "tuning.json"
    file.write_text(json.dumps(table(*SOME)))
    questions = [Question("AllReduce", 1 << 16, costs_of("Ring LL128")),
                 Question("AllReduce", 1 << 16, costs_of("Ring LL128", "Ring Simple")),
                 Question("AllReduce", 8, costs_of("Tree LL")),
                 Question("AllReduce", 16, costs_of("Tree LL"))]
    said = ask(client, questions, version, HARP_TUNER=str(file))
    assert said.answers == [expected(SOME, one) for one in questions]
    assert said.answers[0][0] == 8
    assert said.answers[1:] == [(0, one.costs) for one in questions[1:]]
    line, = said.warnings
    assert "Ring LL128 for 65536 bytes is not to be had here" in line


def test_algorithms_that_this_nccl_does_not_know_are_not_asked_for(client: Path,
                                                                   tmp_path: Path) -> None:
    """A table of six algorithms, and one of two protocols: no cell outside of them is touched."""
    file = tmp_path / "tuning.json"
    file.write_text(json.dumps(table(*SOME)))
    questions = [Question("AllGather", 50, costs_of(algorithms=6), algorithms=6),
                 Question("AllReduce", 1 << 16, tuple(range(1, 15)), protocols=2)]
    said = ask(client, questions, HARP_TUNER=str(file))
    assert said.answers == [expected(SOME, one) for one in questions]
    assert said.answers[0] == (0, questions[0].costs)


def test_a_table_is_as_its_schema_has_it() -> None:
    validate(table(*SOME), SCHEMA)
    for content, _ in list(WRONG.values())[2:8]:
        with pytest.raises(AssertionError):
            validate(content, SCHEMA)


def test_random_tables_and_costs(client: Path, tmp_path: Path) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        limits = np.sort(rng.integers(0, 1 << 22, (60, 2)), axis=1).tolist()
        rows = [row(str(rng.choice(COLLECTIVES)), least, most, str(rng.choice(ALGORITHMS)),
                    str(rng.choice(PROTOCOLS)), int(rng.integers(0, 65)))
                for least, most in limits]
        file = tmp_path / "tuning.json"
        file.write_text(json.dumps(table(*rows)))
        questions = []
        for _ in range(200):
            algorithms, protocols = int(rng.integers(1, 9)), int(rng.integers(1, 4))
            costs = rng.integers(1, 1000, algorithms * protocols).astype(float)
            costs[rng.random(costs.size) < 0.4] = NONE
            questions.append(Question(str(rng.choice(COLLECTIVES)), int(rng.integers(0, 1 << 22)),
                                      tuple(costs.tolist()), algorithms, protocols))
        said = ask(client, questions, int(rng.choice(VERSIONS)), HARP_TUNER=str(file))
        assert said.answers == [expected(rows, one) for one in questions]
        forbidden = [(one.costs, costs) for one, (_, costs) in zip(questions, said.answers,
                                                                   strict=True)]
        assert all((before == NONE) == (after == NONE) for pair in forbidden
                   for before, after in zip(*pair, strict=True))


QUESTIONS = [Question("AllReduce", 4096, costs_of()), Question("AllGather", 50, costs_of())]
UNTOUCHED = [(0, costs_of())] * 2


@pytest.mark.parametrize("version", VERSIONS)
def test_without_a_table_nccl_chooses_and_nothing_is_said(client: Path, version: int) -> None:
    said = ask(client, QUESTIONS, version)
    assert (said.answers, said.log) == (UNTOUCHED, [])


@pytest.mark.parametrize(("network", "chooses"), [("Socket", False), ("IB", False), ("harp", True),
                                                  ("", True)])
def test_a_table_for_harp_is_for_no_other_network(client: Path, tmp_path: Path, network: str,
                                                  chooses: bool) -> None:
    file = tmp_path / "tuning.json"
    file.write_text(json.dumps(table(*SOME)))
    said = ask(client, QUESTIONS, HARP_TUNER=str(file), NCCL_NET=network)
    assert (said.answers != UNTOUCHED) == chooses


def test_another_communicator_is_left_to_nccl(client: Path, tmp_path: Path) -> None:
    file = tmp_path / "tuning.json"
    file.write_text(json.dumps(table(*SOME)))
    said = ask(client, QUESTIONS, ranks=8, HARP_TUNER=str(file))
    assert said.answers == UNTOUCHED
    assert said.warnings == []
    assert any("0 rows for 8 ranks on 2 nodes, so NCCL chooses" in line for line in said.log)


def test_the_log_has_a_fingerprint_of_the_file(client: Path, tmp_path: Path) -> None:
    """Alike if the file is, so that ranks can be compared by their logs."""
    prints = []
    for name, rows in (("a", SOME), ("b", SOME), ("c", SOME[1:])):
        (tmp_path / name).write_text(json.dumps(table(*rows)))
        said = ask(client, QUESTIONS, HARP_TUNER=str(tmp_path / name))
        prints.append({line.partition("fingerprint ")[2][:16] for line in said.log})
    assert prints[0] == prints[1] != prints[2]
    assert all(len(one) == 1 and int(next(iter(one)), 16) for one in prints)


def test_a_plan_may_bring_the_table(client: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "plan.json", tmp_path / "tuning.json"
    file.write_text(json.dumps({"format": "harp-plan-1", "tuning": table(*SOME), "ranks": []}))
    said = ask(client, QUESTIONS, HARP_PLAN=str(file))
    assert said.answers == [expected(SOME, one) for one in QUESTIONS]
    assert said.warnings == []
    other.write_text(json.dumps(table(SOME[3])))
    said = ask(client, QUESTIONS, HARP_PLAN=str(file), HARP_TUNER=str(other))
    assert said.answers == [expected(SOME[3:], one) for one in QUESTIONS]


def test_a_plan_without_a_table_is_nothing_to_say_unless_it_was_asked_for(
        client: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"format": "harp-plan-1", "ranks": []}))
    said = ask(client, QUESTIONS, HARP_PLAN=str(file))
    assert (said.answers, said.log) == (UNTOUCHED, [])
    said = ask(client, QUESTIONS, HARP_TUNER=str(file))
    assert said.answers == UNTOUCHED
    assert "it is a plan without a tuning table" in said.warnings[0]


def changed(**keys: object) -> Row:
    return {**SOME[0], **keys}


WRONG: dict[str, tuple[object, str]] = {
    "no JSON": ("tuning: here", "line 1 is no tuning table's: expected {"),
    "cut off": ('{"format": "harp-tuning-1",\n"communicators": [',
                "line 2 is no tuning table's: expected"),
    "another format": ({**table(), "format": "harp-tuning-9"},
                       "expected format harp-tuning-1, as this HARP reads it"),
    "no rows": ({"format": "harp-tuning-1"}, "expected communicators"),
    "no such algorithm": (table(changed(algorithm="Rnig")),
                          "expected Tree, Ring, CollNetDirect, CollNetChain, NVLS, NVLSTree or"),
    "no such protocol": (table(changed(protocol="LL64")), "expected LL, LL128 or Simple"),
    "no such collective": (table(changed(collective="AllToAll")),
                           "expected Broadcast, Reduce, AllGather, ReduceScatter or AllReduce"),
    "too many channels": (table(changed(channels=65)), "expected a smaller number"),
    "limits the wrong way round": (table(changed(min_bytes=9000)),
                                   "expected min_bytes up to max_bytes in each row"),
    "no limit": (table({k: v for k, v in SOME[0].items() if k != "max_bytes"}),
                 "expected collective, min_bytes, max_bytes, algorithm and protocol in each row"),
    "wrong of others, too": ({**table(), "communicators": [
        {"ranks": 2, "nodes": 2, "rows": [changed(algorithm="?")]}]}, "expected Tree, Ring"),
    "rows of nobody": ({**table(), "communicators": [{"rows": []}]},
                       "expected ranks and nodes, above 0, before the rows"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_one_line_and_nccls_own_choice(client: Path, tmp_path: Path,
                                                       case: str) -> None:
    content, sentence = WRONG[case]
    file = tmp_path / "tuning.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    said = ask(client, QUESTIONS, HARP_TUNER=str(file))
    assert said.answers == UNTOUCHED
    warnings = set(said.warnings)
    assert len(warnings) == 1
    assert f"HARP_TUNER {file} is not followed, NCCL chooses: " in said.warnings[0]
    assert sentence in said.warnings[0]


def test_a_file_that_is_missing_or_settings_that_are_wrong(client: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        said = ask(client, QUESTIONS, HARP_TUNER=str(path))
        assert said.answers == UNTOUCHED
        assert "is not followed, NCCL chooses: it cannot be read: " in said.warnings[0]
    said = ask(client, QUESTIONS, HARP_PATHS="many")
    assert said.answers == UNTOUCHED
    assert "no table is read, NCCL chooses: HARP_PATHS" in said.warnings[0]


def test_the_tuner_does_what_sim_tune_found(client: Path, tmp_path: Path) -> None:
    """The simulator's table, as the simulator reads it, and as the plugin follows it."""
    made = Cluster(load(ROOT / "topologies" / "taco-vgg16-v100-25g.yaml"))
    tuned = tune(made, made.topology.scenarios[0], parse_sizes("1KiB:16MiB:4"), 60, lambda *_: None)
    tuning = Tuning((tuned.communicator,))
    file = tmp_path / "tuning.json"
    file.write_text(tuning.to_json())
    questions = [Question(collective, size, costs_of()) for collective in COLLECTIVES
                 for size in np.geomspace(1, 1 << 26, 60).astype(int).tolist()]
    said = ask(client, questions, HARP_TUNER=str(file))
    chosen = 0
    for question, (channels, costs) in zip(questions, said.answers, strict=True):
        row = next(tuning.find(RANKS, NODES, question.collective, question.nbytes), None)
        if row is None:
            assert (channels, costs) == (0, question.costs)
        else:
            cell = costs.index(min(costs))
            assert divmod(cell, 3) == (ALGORITHMS.index(row.algorithm),
                                       PROTOCOLS.index(row.protocol))
            assert channels == row.channels
            chosen += 1
    assert chosen > 20


def test_tables_that_are_cut_off_or_changed(client: Path) -> None:
    run(client, "change")
