"""nccl-tests' JSON gives what its log gives, and the environment in it goes nowhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from sim.calibration.nccl_json import read_nccl
from sim.calibration.nccl_log import parse_log
from tests.support import json_changes
from tests.support.calibrate_runs import GOOD, PAIR, derived, refused, run, save
from tests.support.nccl_samples import nccl_log, ring_time

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "AWS_SECRET_ACCESS_KEY=do-not-keep-me"
EIGHT = ["node-0"] * 8 + ["node-1"] * 8


def document(log: str, *, of_process: int = 1) -> dict[str, Any]:
    """Output of ``-J`` beside a log: src/util.cu of NVIDIA/nccl-tests, version 2 of the file."""
    parsed = parse_log(log, "log")
    ranks, factor = parsed.ranks, 2 * (parsed.ranks - 1) / parsed.ranks

    def half(row: Any) -> dict[str, Any]:
        algbw = row.size_bytes / row.time_s / 1e9
        return {"time": row.time_s * 1e6, "alg_bw": algbw, "bus_bw": algbw * factor, "nwrong": 0.0}

    pairs = zip(parsed.rows[::2], parsed.rows[1::2], strict=True)
    return {
        "version": 2, "start_time": "2026-07-01 10:00:00",
        "args": ["./build/all_reduce_perf", "-J", "out.json"], "env": ["HOME=/root", SECRET],
        "nccl_version": 23007,
        "config": {"nthreads": 1, "ngpus": of_process, "minimum_bytes": 8, "step_factor": 2,
                   "blocking_collectives": "false", "devices": [
                       {"rank": rank, "group": 0, "pid": 7, "hostname": parsed.hosts[rank],
                        "device": 0, "device_hex": "0000:07:00", "device_info": "V100"}
                       for rank in range(0, ranks, of_process)]},
        "results": [{"size": first.size_bytes, "count": first.count, "type": "float",
                     "redop": "sum", "root": "    -1", "out_of_place": half(first),
                     "in_place": half(second), "actual_iterations": 20}
                    for first, second in pairs],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 0.5, "okay": "unchecked"}, "errors": [],
        "end_time": "2026-07-01 10:00:09"}


def text(log: str = GOOD, **changes: Any) -> str:
    return json.dumps(document(log) | changes)


@pytest.mark.parametrize("of_process", [1, 4, 8])
def test_json_and_log_of_one_run_give_the_same_times(of_process: int) -> None:
    log = nccl_log(ring_time(40e-6, 0.9e-9, ranks=16, hosts=2), EIGHT)
    read = read_nccl(json.dumps(document(log, of_process=of_process)), "x")
    known = parse_log(log, "x")
    assert (read.ranks, read.hosts) == (known.ranks, known.hosts)
    assert [(row.size_bytes, row.count) for row in read.rows] == [
        (row.size_bytes, row.count) for row in known.rows]
    assert [row.time_s for row in read.rows] == pytest.approx([row.time_s for row in known.rows])


def test_json_and_log_of_one_run_give_the_same_stack(tmp_path: Path) -> None:
    log = nccl_log(ring_time(41e-6, 0.9e-9, ranks=16, hosts=2), EIGHT)
    of_log = derived(save(tmp_path, log, "log"))
    of_json = derived(save(tmp_path, json.dumps(document(log)), "json"))
    assert set(of_log) == set(of_json)
    for name, row in of_json.items():
        assert row["value"] == pytest.approx(of_log[name]["value"], rel=1e-6)


def test_the_environment_goes_nowhere(tmp_path: Path) -> None:
    path, output = save(tmp_path, text(), "in.json"), tmp_path / "out.yaml"
    done = run("--stack", "harp", "--from", path, "-o", output)
    assert done.exit_code == 0, done.output
    for kept in (done.output, output.read_text(), repr(read_nccl(path.read_text(), "x"))):
        assert "do-not-keep-me" not in kept
        assert "HOME" not in kept


def test_out_of_place_may_be_left_out() -> None:
    made = document(GOOD)
    for result in made["results"]:
        result["out_of_place"] = None
    assert len(read_nccl(json.dumps(made), "x").rows) == len(parse_log(GOOD, "x").rows) // 2


def changed(*path: Any, value: Any) -> str:
    return json.dumps(json_changes.changed(document(GOOD), *path, value=value))


BAD = {
    "cut off": (text()[:-40], "is not JSON"),
    "not done": (changed("average_bus_bandwidth", value=None), "the run is cut off"),
    "no results": (changed("results", value=[]), "it has no times"),
    "nan": (changed("results", 0, "in_place", "time", value="nan"), "results[0].in_place.time"),
    "cpu time": (json.dumps(document(GOOD)).replace('"time":', '"cpu_time":'), "time: is missing"),
    "zero": (changed("results", 2, "in_place", "time", value=0.0), "results[2].in_place"),
    "wrong values": (changed("results", 2, "in_place", "nwrong", value=3.0), "3 wrong values"),
    "another collective": (changed("results", 20, "in_place", "bus_bw", value=9.0),
                           "all_reduce_perf"),
    "one rank": (changed("config", "devices", value=document(GOOD)["config"]["devices"][:1]),
                 "1 rank"),
    "ranks": (changed("config", "ngpus", value=3), "no processes of 3 ranks"),
    "count": (changed("results", 5, "count", value=7), "7 elements"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_json_is_one_sentence_without_the_environment(tmp_path: Path, case: str) -> None:
    content, says = BAD[case]
    sentence = refused(run("--stack", "harp", "--from", save(tmp_path, content, "bad.json")))
    assert says in sentence
    assert "bad.json" in sentence
    assert "do-not-keep-me" not in sentence


def test_a_tuning_table_takes_json(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from sim.tune import main

    slow = nccl_log(ring_time(80e-6, 0.5e-9, ranks=2), PAIR)
    options = [f"--measured=nccl={save(tmp_path, json.dumps(document(slow)), 'own.json')}",
               f"--measured=Tree LL={save(tmp_path, json.dumps(document(GOOD)), 'tree.json')}"]
    done = CliRunner().invoke(main, [*options, "-o", str(tmp_path / "t.json")])
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "t.json").read_text())["communicators"][0]["rows"]
    assert {(row["algorithm"], row["protocol"]) for row in rows} == {("Tree", "LL")}
