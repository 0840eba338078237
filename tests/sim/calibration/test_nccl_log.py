"""Stack parameters from logs of nccl-tests: what made a log comes out; a bad one says why."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.answer.collective_bench import measure
from sim.calibration.nccl_log import parse_log
from sim.cluster.cluster import Cluster
from sim.schema import TopologyError, load
from sim.schema.parameters import load_stack
from tests.support.calibrate_runs import GOOD, PAIR, ROOT, TACO, derived, refused, run, save
from tests.support.nccl_samples import SIZES, nccl_log, ring_time

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sim.schema.parameters import HostStack

DATA = ROOT / "tests" / "data" / "samples"
EIGHT = ["node-0"] * 8 + ["node-1"] * 8


@pytest.mark.parametrize("layout", ["new", "old"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_noisy_log_gives_back_what_made_it(tmp_path: Path, layout: str, seed: int) -> None:
    alpha, beta = 40e-6, 0.5e-9
    log = nccl_log(ring_time(alpha, beta, ranks=2), PAIR, noise=0.03, seed=seed, layout=layout)
    found = derived(save(tmp_path, log))
    base = load_stack("harp")
    # One GPU a host: its thread sends and receives every byte, so a byte costs twice.
    payload = 1500 - (base.headers.value - 38)
    cost = beta / 2 - base.cost_per_packet.value / payload
    assert found["cost_per_byte"]["low"] <= cost <= found["cost_per_byte"]["high"]
    assert found["cost_per_byte"]["value"] == pytest.approx(cost, rel=0.05)
    assert hop_s(found, base) == pytest.approx(alpha, rel=0.05)


def hop_s(found: dict[str, dict[str, float]], base: HostStack) -> float:
    """Cost of a hop for a short message: noise does not separate its two parts."""
    rest = found.get("cost_per_message", {"value": base.cost_per_message.value})
    return found["start_latency"]["value"] + rest["value"]


def simulated(stack: str, topology: Path = TACO) -> Callable[[int], float]:
    report = measure(Cluster(load(topology)), "allreduce", SIZES, stack)
    times = {row.size_bytes: row.time_s for row in report.rows if row.algorithm == "ring"}
    return lambda size: times[size]


def test_a_log_by_nccls_rule_of_latency_gives_back_a_hop(tmp_path: Path) -> None:
    """Two hosts of 8: 26 hops at 5 us inside, 4 at 52 us between, and bytes where they are more."""
    def time_s(size: int) -> float:
        alone_s = ring_time(52e-6, 1e-9, ranks=16, hosts=2)(size)
        return max(alone_s, 26 * 5e-6 + 4 * (52e-6 + size / 16 * 1e-9))

    path = save(tmp_path, nccl_log(time_s, EIGHT))
    found = derived(path, "--topology", TACO)
    # PCIe twice 1 us and two links of 5 us belong to the network.
    assert hop_s(found, load_stack("harp")) == pytest.approx(52e-6 - 12e-6, rel=0.02)


def test_a_log_on_another_base_simulates_to_the_same_times(tmp_path: Path) -> None:
    truth = simulated("taco-tcp-process")
    output = tmp_path / "out.yaml"
    derived(save(tmp_path, nccl_log(truth, EIGHT)), "--topology", TACO, "-o", output)
    document = yaml.safe_load(TACO.read_text(encoding="utf-8"))
    document["stacks"] = {"measured": yaml.safe_load(output.read_text(encoding="utf-8"))}
    with_stack = tmp_path / "with-stack.yaml"
    with_stack.write_text(yaml.safe_dump(document))
    report = measure(Cluster(load(with_stack)), "allreduce", SIZES, "measured")
    for row in report.rows:
        if row.algorithm == "ring":
            assert row.time_s == pytest.approx(truth(row.size_bytes), rel=0.02)


@pytest.mark.parametrize(("name", "alpha", "beta", "ways"), [
    ("nccl-tests-16-ranks.log", 41e-6, 0.9e-9, 1),
    ("nccl-tests-2-ranks-old.log", 24e-6, 1.1e-9, 2)])
def test_stored_logs(name: str, alpha: float, beta: float, ways: int) -> None:
    base, found = load_stack("harp"), derived(DATA / name)
    assert hop_s(found, base) == pytest.approx(alpha, rel=0.06)
    # With one rank a host its thread pays twice for a byte; with more, another one receives it.
    assert ways * (found["cost_per_byte"]["value"] + base.cost_per_packet.value / 1428) == \
        pytest.approx(beta, rel=0.06)


LINES = GOOD.splitlines()
FIRST = next(i for i, line in enumerate(LINES) if line.lstrip().startswith("8 "))


def with_row(text: str) -> str:
    return "\n".join([*LINES[:FIRST], text, *LINES[FIRST + 1:]])


BAD_LOGS = {
    "empty": ("", "is empty"),
    "blank": (" \n\n", "is empty"),
    "binary": (b"\x7fELF\x00\x01\x02\xff", "is not text"),
    "not utf-8": (GOOD.encode() + b"\xff\xfe", "is not text"),
    "nul": (GOOD.encode() + b"\0", "is not text"),
    "prose": ("the benchmark did not run\n", "no table of nccl-tests"),
    "no header": ("\n".join(line for line in LINES if "redop" not in line),
                  "no table of nccl-tests"),
    "cut in a row": (GOOD[:GOOD.index("524288 ") + 60], "a row with"),
    "cut after a row": ("\n".join(LINES[:FIRST + 9]), "the log is cut off"),
    "times of the CPU": (GOOD.replace("   time", "cputime"), "its times are the CPU's"),
    "no rows": ("\n".join(LINES[:FIRST] + LINES[-3:]), "has no rows"),
    "nan": (with_row("  8 2 float sum -1 nan 0.00 0.00 0 80.0 0.00 0.00 0"), "found 'nan'"),
    "inf": (with_row("  8 2 float sum -1 inf 0.00 0.00 0 80.0 0.00 0.00 0"), "found 'inf'"),
    "zero time": (with_row("  8 2 float sum -1 0.00 0.00 0.00 0 80.0 0.00 0.00 0"), "a time of 0"),
    "negative": (with_row("  8 2 float sum -1 -80.0 0.00 0.00 0 80.0 0.00 0.00 0"),
                 "found '-80.0'"),
    "word": (with_row("  8 2 float sum -1 fast 0.00 0.00 0 80.0 0.00 0.00 0"), "found 'fast'"),
    "wrong values": (with_row("  8 2 float sum -1 80.0 0.00 0.00 4 80.0 0.00 0.00 0"),
                     "4 wrong values"),
    "too many columns": (with_row("  8 2 float sum -1 80 0 0 0 80 0 0 0 7"), "14 columns"),
    "count": (with_row("  8 3 float sum -1 80.0 0.00 0.00 0 80.0 0.00 0.00 0"), "3 elements"),
    "huge size": (with_row(f"  {8**30} 2 float sum -1 80.0 0.00 0.00 0 80.0 0.00 0.00 0"),
                  "whole number"),
    "algbw": (with_row("  8 2 float sum -1 80.0 9.00 9.00 0 80.0 0.00 0.00 0"), "algbw 9"),
    "other columns": (GOOD.replace("   redop    root ", "   redop     min "), "a table with the"),
    "two runs": (GOOD + GOOD.split("# Using devices\n")[0] + "\n".join(LINES[FIRST - 4:]),
                 "a second table"),
    "rank twice": (GOOD.replace("Rank  1", "Rank  0"), "rank 0 stands twice"),
    "rank missing": (GOOD.replace("Rank  1", "Rank  2"), "up to rank 2"),
    "no ranks": ("\n".join(line for line in LINES if "Rank" not in line), "how many ranks"),
    "one rank": (GOOD.replace(LINES[4] + "\n", ""), "1 rank"),
    "one host": (GOOD.replace("node-1", "node-0"), "all ranks are on one host"),
    "unequal hosts": (nccl_log(ring_time(40e-6, 0.5e-9, ranks=3), [*PAIR, "node-0"]), "unequal"),
    "no hosts": ("\n".join(["# nranks 2", *(line for line in LINES if "Rank" not in line)]),
                 "does not name the ranks' hosts"),
}


@pytest.mark.parametrize("case", BAD_LOGS)
def test_a_bad_log_is_refused_in_one_sentence_and_nothing_is_written(tmp_path: Path,
                                                                     case: str) -> None:
    content, says = BAD_LOGS[case]
    path, output = save(tmp_path, content, "bad.log"), tmp_path / "out.yaml"
    output.write_text("before")
    sentence = refused(run("--stack", "harp", "--from", path, "-o", output))
    assert says in sentence
    assert str(path) in sentence
    assert output.read_text() == "before"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.log", "out.yaml"]


@pytest.mark.parametrize("label", [
    "[1,0]<stdout>:", "[1,0]<stdout>: ", "[0] ", " 0: ", "0: ", "[job-node-0-71@1,0]<stdout>: ",
    "2026-11-29T16:14:11.123456789Z ", "2026-11-29T16:14:11+00:00 ", "2026-11-29 16:14:11,123 ",
    "[2026-11-29 16:14:11] ", "Nov 29 16:14:11 ", "Nov  9 16:14:11 ", "16:14:11 ", "1764433451.25 ",
    "Sun Nov 29 16:14:11 2026<stdout>:", "Sun Nov 29 16:14:11 2026[1,0]<stdout>:",
    "2026-11-29T16:14:11.5Z stdout F ", "2026-11-29T16:14:11Z [1,0]<stdout>: ",
    "[1,0]<stdout>:16:14:11 ", "[pod/nccl-launcher-x7/nccl] ",
    "[pod/nccl-launcher-x7/nccl] 2026-11-29T16:14:11.5Z "])
def test_rank_and_time_that_launchers_and_containers_put_before_lines_are_skipped(
        label: str) -> None:
    labelled = "".join(f"{label}{line}\n" for line in GOOD.splitlines())
    assert parse_log(labelled, "log") == parse_log(GOOD, "log")


def test_another_collective_is_recognised_by_its_bus_bandwidth() -> None:
    log = nccl_log(ring_time(1e-6, 1e-11, ranks=4), [*PAIR, *PAIR])
    assert parse_log(log, "x").ranks == 4
    columns = log.splitlines()[-4].split()
    columns[7] = columns[11] = f"{float(columns[6]) * 3 / 4:.2f}"  # as all_gather_perf counts
    with pytest.raises(TopologyError, match=r"all_reduce_perf, whose busbw is 1\.5 times"):
        parse_log("\n".join([*log.splitlines()[:-4], " ".join(columns), *log.splitlines()[-3:]]),
                  "x")


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_mangled_log_is_read_or_refused(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(GOOD)))
    end = data.draw(st.integers(start, min(start + 200, len(GOOD))))
    text = GOOD[:start] + data.draw(st.text(max_size=20)) + GOOD[end:]
    with contextlib.suppress(TopologyError):
        assert all(row.time_s > 0 for row in parse_log(text, "x.log").rows)
