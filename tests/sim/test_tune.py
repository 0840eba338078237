"""``python -m sim.tune``: its table, its budget, and wrong options and files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from harp.collectives.tuning import Communicator, Row, Tuning
from sim.answer.collective_bench import parse_sizes
from sim.answer.nccl_tuning import tune
from sim.network.nccl import View, choose, tuned_choice
from sim.run import main as run_main
from sim.tune import main
from tests.support import ROOT
from tests.support.cluster_files import cluster, topology, write
from tests.support.json_schemas import validate

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = json.loads((ROOT / "docs" / "use" / "harp-tuning-1.schema.json").read_text())
CLUSTERS: dict[str, dict[str, Any]] = {
    "two hosts of TCP": {"hosts": 2, "gpus": 4, "rate_bps": 25e9,
                         "scenario": {"stack": "kernel-tcp", "channels": "auto"}},
    "eight virtual hosts": {"hosts": 8, "rate_bps": 50e9, "vpc": {"vnics": 1},
                            "scenario": {"stack": "kernel-tcp", "channels": "auto"}},
    "rails": {"hosts": 4, "gpus": 4, "nic": {"count": 4}, "host": {
        "gpus": {"count": 4, "model": "H100", "effective": "100TFLOPS"}},
        "fabric": {"template": "rail", "hosts_per_leaf": 4, "spines": 2},
        "scenario": {"stack": "harp", "channels": "auto"}}}


def nothing(steps: float = 1, doing: str | None = None) -> None:
    """No progress bar."""


def run(*arguments: object) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_what_nccl_has_is_all_that_a_table_asks_for(tmp_path: Path) -> None:
    made = cluster(tmp_path, **CLUSTERS["two hosts of TCP"])
    tuned = tune(made, made.topology.scenarios[0], parse_sizes("1KiB:16MiB:4"), 60, nothing)
    assert (tuned.communicator.ranks, tuned.communicator.nodes) == (8, 2)
    assert tuned.communicator.rows
    assert all(row.protocol != "LL128" for row in tuned.communicator.rows)  # not on "any" GPU
    assert all(row.channels < 2 and (row.gain or 0) >= 1.02 for row in tuned.communicator.rows)


def test_a_budget_is_kept_and_reported(tmp_path: Path) -> None:
    path = write(tmp_path, topology(**CLUSTERS["two hosts of TCP"]))
    done = run(path, "--budget", "1us", "-o", tmp_path / "t.json")
    assert done.exit_code == 0, done.stderr
    assert "6 of 84 sizes were tried within the budget" in done.stdout
    assert json.loads((tmp_path / "t.json").read_text())["source"]["tried"] == "6 of 84 sizes"


def test_the_file_is_what_its_schema_says_and_reads_back(tmp_path: Path) -> None:
    path = write(tmp_path, topology(**CLUSTERS["two hosts of TCP"]))
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    done = run(path, "-o", first, "--sizes", "1KiB:16MiB:4")
    assert done.exit_code == 0, done.stderr
    run(path, "-o", second, "--sizes", "1KiB:16MiB:4", "--quiet")
    text = first.read_text()
    assert text == second.read_text()
    validate(json.loads(text), SCHEMA)
    assert Tuning.from_json(text).to_json() == text
    source = json.loads(text)["source"]
    assert (source["kind"], source["files"], source["stack"]) == ("simulated", ["t.yaml"],
                                                                  "kernel-tcp")
    other = tmp_path / "c.json"
    run(path, "-o", other, "--sizes", "1KiB:16MiB:4", "--set", "hosts[0].nics[0].rate=10Gbps")
    assert json.loads(other.read_text())["source"]["fingerprint"] != source["fingerprint"]


def test_a_table_says_what_a_collective_takes(tmp_path: Path) -> None:
    path = write(tmp_path, topology(**CLUSTERS["two hosts of TCP"]))
    table = tmp_path / "t.json"
    rows = (Row("AllReduce", 0, 1 << 20, "NVLS", "Simple"),
            Row("AllReduce", 0, 1 << 20, "Ring", "LL", 1))
    table.write_text(Tuning((Communicator(8, 2, rows),)).to_json())
    done = CliRunner().invoke(run_main, [str(path), "--collective", "allreduce", "--tuned",
                                         str(table), "--sizes", "1MiB:4MiB:4", "--json", "-"])
    assert done.exit_code == 0, done.stderr
    found = {(row["size_bytes"], row["algorithm"]): row for row in json.loads(done.stdout)["rows"]}
    assert found[1 << 20, "tuned"]["choice"] == "ring LL, 1 channel"
    assert found[1 << 20, "tuned"]["time_us"] > found[1 << 20, "NCCL"]["time_us"]
    assert found[4 << 20, "tuned"]["choice"] == found[4 << 20, "NCCL"]["choice"]
    assert found[4 << 20, "tuned"]["time_us"] == found[4 << 20, "NCCL"]["time_us"]


V100 = View(ranks=16, hosts=2, generation=0, nvlink=True, rings=1, speed=12.0, channels=4,
            ll128=False)


@pytest.mark.parametrize(("rows", "name"), [
    ((Row("AllReduce", 0, 99, "Ring", "LL128"), Row("AllReduce", 0, 99, "Tree", "Simple", 2)),
     "tree Simple, 2 channels"),
    ((Row("AllGather", 0, 99, "Ring", "LL"),), "tree LL"),
    ((Row("AllReduce", 17, 99, "Ring", "LL"),), "tree LL"),
    ((Row("AllReduce", 16, 16, "Ring", "Simple", 9),), "ring Simple")])
def test_the_first_row_that_nccl_can_have_counts(rows: tuple[Row, ...], name: str) -> None:
    """LL128 is not had here, and 9 channels are no more than NCCL's own 4."""
    tuning = Tuning((Communicator(16, 2, rows), Communicator(8, 2, ())))
    assert choose(V100, "allreduce", 16).name == "tree LL"
    assert tuned_choice(V100, "allreduce", 16, tuning).name == name


# ---- measured

def log_line(size: int, time_us: float, ranks: int) -> str:
    algbw = size / time_us / 1e3
    each = f"{time_us} {algbw:.4f} {algbw * 2 * (ranks - 1) / ranks:.4f} 0"
    return f"{size:>12}{size // 4:>14}     float     sum     -1 {each} {each}\n"


def write_log(path: Path, times_us: dict[int, float], hosts: int = 2) -> Path:
    ranks = "".join(f"#  Rank {rank:2} Group  0 Pid {rank} on node-{rank // 2} device 0 [0x07] V\n"
                    for rank in range(2 * hosts))
    head = "# " + " ".join(["size count type redop root", *["time algbw busbw #wrong"] * 2]) + "\n"
    rows = "".join(log_line(size, time, 2 * hosts) for size, time in times_us.items())
    path.write_text(f"{ranks}{head}{rows}# Avg bus bandwidth : 1.0\n")
    return path


# ---- mistakes

WRONG = {
    "nothing": ([], "give a topology file, or --measured"),
    "no scenario": (["{t}", "--scenario", "x"], "'x' is not a known scenario; allowed: s"),
    "no stack": (["{t}", "--stack", "kernel-tpc"], "did you mean 'kernel-tcp'?"),
    "no budget": (["{t}", "--budget", "soon"], "--budget soon: "),
    "no sizes": (["{t}", "--sizes", "8:4"], "--sizes 8:4: give FROM:TO:FACTOR"),
    "both": (["{t}", "--measured", "nccl={l}"], "TOPOLOGY does not work with --measured"),
    "no forced": (["--measured", "nccl={l}"], "and at least one that was forced"),
    "no choice": (["--measured", "nccl={l}", "--measured", "NVLS LL={l}"],
                  "--measured NVLS LL: allowed are nccl, and Tree or Ring with"),
    "no log": (["--measured", "nccl=none.log"], "none.log cannot be read: No such file"),
    "no JSON": (["{t}", "-o", "x.yaml"], ".json"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_sentence(tmp_path: Path, case: str) -> None:
    path = write(tmp_path, topology(**CLUSTERS["two hosts of TCP"]))
    log = write_log(tmp_path / "x.log", {1024: 1})
    arguments, sentence = WRONG[case]
    done = run(*(text.format(t=path, l=log) for text in arguments))
    assert (done.exit_code, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


NO_TABLES = {
    "": "it is no JSON", "[]": "its format is None", '{"format": "harp-tuning-1"}':
    "communicators is missing", '{"format": "harp-tuning-1", "communicators": [{"ranks": 8, '
    '"nodes": 2, "rows": [{"collective": "AllReduce"}]}]}':
    "min_bytes is missing in communicators[0].rows[0]",
    '{"format": "harp-tuning-1", "communicators": []}': "has no rows for 8 ranks on 2 hosts",
}


@pytest.mark.parametrize("text", NO_TABLES)
def test_a_file_that_is_no_table_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, topology(**CLUSTERS["two hosts of TCP"]))
    (tmp_path / "t.json").write_text(text)
    done = CliRunner().invoke(run_main, [str(path), "--collective", "allreduce", "--tuned",
                                         str(tmp_path / "t.json")])
    assert (done.exit_code, done.stdout) == (2, "")
    assert NO_TABLES[text] in done.stderr
    alone = CliRunner().invoke(run_main, [str(path), "--tuned", "x"])
    assert "--tuned needs --collective" in alone.stderr
    none = CliRunner().invoke(run_main, [str(path), "--collective", "alltoall", "--tuned", "x"])
    assert "--tuned does not work for alltoall" in none.stderr


