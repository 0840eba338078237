"""Stack parameters from measurements: what was put in comes out; bad files say what is wrong."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_samples import SIZES, nccl_log, ring_time

from sim.answer.collective_bench import measure
from sim.calibrate import main
from sim.calibration.derive import derive
from sim.calibration.equation import Equation
from sim.calibration.measurements import BENCH as BENCH_IDS
from sim.calibration.measurements import Measured
from sim.calibration.nccl_log import parse_log
from sim.calibration.regress import estimate
from sim.cluster.cluster import Cluster
from sim.schema import TopologyError, load
from sim.schema.parameters import StackSet, load_set, load_stack

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from sim.schema.parameters import HostStack

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data"
TACO = ROOT / "topologies" / "taco-vgg16-v100-25g.yaml"
PAIR = ["node-0", "node-1"]
EIGHT = ["node-0"] * 8 + ["node-1"] * 8


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def derived(path: Path, *more: object, stack: str = "harp") -> dict[str, dict[str, float]]:
    """The parameters that the command finds, by name."""
    result = run("--stack", stack, "--from", path, "--json", *more)
    assert result.exit_code == 0, result.output
    return {row["name"]: row for row in json.loads(result.stdout)["parameters"]}


def save(folder: Path, content: str | bytes | list[Any], name: str = "in") -> Path:
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


# ---- regression

@given(st.integers(0, 2**32), st.floats(1e-6, 1e-3), st.floats(1e-11, 1e-8))
@settings(max_examples=10, deadline=None)
def test_exact_times_give_exact_values(seed: int, alpha: float, beta: float) -> None:
    size = np.array(SIZES, np.float64)
    design = np.stack([np.full_like(size, 2.0), size], axis=1)
    found = estimate(design, design @ [alpha, beta])
    assert found.values == pytest.approx([alpha, beta], rel=1e-6)
    assert found.low == pytest.approx(found.high, rel=1e-5)


def noisy(seed: int, noise: float = 0.05) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    size = np.array(SIZES, np.float64)
    design = np.stack([np.full_like(size, 2.0), size], axis=1)
    error = np.random.default_rng(seed).normal(0, noise, len(size))
    return design, design @ [30e-6, 1e-9] * (1 + error)


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    held = []
    for seed in range(40):
        found = estimate(*noisy(seed))
        held.append((found.low <= [30e-6, 1e-9]) & (found.high >= [30e-6, 1e-9]))
    assert np.mean(held) > 0.85  # they say 0.95; the errors are few and their tails are cut


def test_a_few_wild_rows_do_not_pull() -> None:
    design, times = noisy(7, 0.02)
    times[[3, 20]] *= 5
    assert estimate(design, times).values == pytest.approx([30e-6, 1e-9], rel=0.05)


def test_values_are_never_negative_and_equal_data_give_equal_intervals() -> None:
    design, times = noisy(1)
    found = estimate(design, times - 59e-6)
    assert found.low.min() >= 0.0
    again = estimate(design, times - 59e-6)
    assert (found.low.tolist(), found.high.tolist()) == (again.low.tolist(), again.high.tolist())


# ---- nccl-tests logs

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
    """What a short message pays for a hop: noise does not tell the one part from the other."""
    rest = found.get("cost_per_message", {"value": base.cost_per_message.value})
    return found["start_latency"]["value"] + rest["value"]


def simulated(stack: str, topology: Path = TACO) -> Callable[[int], float]:
    report = measure(Cluster(load(topology)), "allreduce", SIZES, stack)
    times = {row.size_bytes: row.time_s for row in report.rows if row.algorithm == "ring"}
    return lambda size: times[size]


@pytest.mark.parametrize("stack", ["taco-tcp", "taco-harp"])
def test_a_log_of_our_own_simulator_gives_back_the_stack(tmp_path: Path, stack: str) -> None:
    path = save(tmp_path, nccl_log(simulated(stack), EIGHT))
    output = tmp_path / "out.yaml"
    found = derived(path, "--topology", TACO, "-o", output, stack=stack)
    truth = load_stack(stack)
    for name, row in found.items():
        assert row["value"] == pytest.approx(getattr(truth, name).value, rel=0.02), name
    assert set(found) == {"cost_per_byte", "start_latency", "cost_per_message"}


def test_a_log_by_nccls_rule_of_latency_gives_back_a_hop(tmp_path: Path) -> None:
    """Two hosts of 8: 26 hops at 5 us inside, 4 at 52 us between, and bytes where they are more."""
    def time_s(size: int) -> float:
        alone_s = ring_time(52e-6, 1e-9, ranks=16, hosts=2)(size)
        return max(alone_s, 26 * 5e-6 + 4 * (52e-6 + size / 16 * 1e-9))

    path = save(tmp_path, nccl_log(time_s, EIGHT))
    found = derived(path, "--topology", TACO)
    # PCIe twice 1 us and two links of 5 us belong to the network.
    assert hop_s(found, load_stack("harp")) == pytest.approx(52e-6 - 12e-6, rel=0.02)


def test_what_a_log_gives_on_another_base_simulates_to_the_same_times(tmp_path: Path) -> None:
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


def test_without_a_topology_the_network_is_the_stacks(tmp_path: Path) -> None:
    document = yaml.safe_load(TACO.read_text(encoding="utf-8"))
    document["hosts"][0]["gpus"]["count"] = 1
    document = {key: document[key] for key in ("name", "hosts", "fabric", "workload")}
    document["scenarios"] = [{"name": "s", "stack": "taco-tcp-process"}]
    pair = save(tmp_path, yaml.safe_dump(document), "pair.yaml")
    log = save(tmp_path, nccl_log(simulated("taco-tcp-process", pair), PAIR))
    found, truth = derived(log, stack="taco-tcp-process"), load_stack("taco-tcp-process")
    assert found["cost_per_byte"]["value"] == pytest.approx(truth.cost_per_byte.value, rel=0.02)
    # PCIe twice 1 us and two links of 5 us.
    wanted_s = truth.start_latency.value + truth.cost_per_message.value + 12e-6
    assert hop_s(found, truth) == pytest.approx(wanted_s, rel=0.02)


def test_rows_at_the_networks_rate_say_nothing_of_the_cpu(tmp_path: Path) -> None:
    path = save(tmp_path, nccl_log(simulated("rdma"), EIGHT))
    result = run("--stack", "harp", "--from", path, "--topology", TACO)
    assert result.exit_code == 0, result.output
    assert "start_latency" in result.stdout
    assert "cost_per_byte" not in result.stdout
    assert "network's own rate" in result.stdout


@pytest.mark.parametrize(("name", "alpha", "beta", "ways"), [
    ("nccl-tests-16-ranks.log", 41e-6, 0.9e-9, 1),
    ("nccl-tests-2-ranks-old.log", 24e-6, 1.1e-9, 2)])
def test_stored_logs(name: str, alpha: float, beta: float, ways: int) -> None:
    base, found = load_stack("harp"), derived(DATA / name)
    assert hop_s(found, base) == pytest.approx(alpha, rel=0.06)
    # With one rank a host its thread pays twice for a byte; with more, another one receives it.
    assert ways * (found["cost_per_byte"]["value"] + base.cost_per_packet.value / 1428) == \
        pytest.approx(beta, rel=0.06)


GOOD = nccl_log(ring_time(40e-6, 0.5e-9, ranks=2), PAIR)
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


def refused(result: Result) -> str:
    """The one sentence of a refusal."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr
    return result.stderr


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


def test_another_collective_is_told_by_its_bus_bandwidth() -> None:
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


def test_a_log_of_another_cluster_is_refused(tmp_path: Path) -> None:
    for hosts, says in ((PAIR, "2 ranks, and the topology has 16 GPUs"),
                        (PAIR[:1] * 4 + PAIR[1:] * 4 + ["c"] * 4 + ["d"] * 4, "names 4 hosts")):
        path = save(tmp_path, nccl_log(ring_time(1e-5, 1e-9, ranks=len(hosts)), hosts))
        assert says in refused(run("--stack", "harp", "--from", path, "--topology", TACO))


# ---- measurements in JSON

def stream(cost_s: float, mtu: int, *, cores: float = 1.0) -> dict[str, Any]:
    return {"kind": "stream", "rate_bps": 8 * cores / cost_s, "cores": cores, "mtu": mtu}


def test_all_kinds_together_give_every_parameter(tmp_path: Path) -> None:
    base = load_stack("harp")
    truth = {"cost_per_byte": 0.2e-9, "cost_per_packet": 0.3e-6, "cost_per_message": 2e-6,
             "start_latency": 15e-6, "flow_rate": 12e9}

    def core_s(mtu: int) -> float:
        payload = mtu - (base.headers.value - 38)
        return truth["cost_per_byte"] + truth["cost_per_packet"] / payload

    rows: list[dict[str, Any]] = [stream(core_s(mtu), mtu, cores=cores)
                                  for mtu in (1500, 3400, 9000) for cores in (1.0, 0.7)]
    for size in (8, 512, 4096):
        message = truth["cost_per_message"] + size * core_s(1500)
        rows.append({"kind": "messages", "size_bytes": size, "time_s": message})
        rows.append({"kind": "pingpong", "size_bytes": size,
                     "time_s": 2 * (message + truth["start_latency"])})
    rows += [{"kind": "stream", "rate_bps": flows * truth["flow_rate"], "flows": flows}
             for flows in (1, 2, 4, 8)]
    rows.append({"kind": "stream", "size_bytes": 10**9,
                 "time_s": 8e9 / truth["flow_rate"], "flows": 1})
    found = derived(save(tmp_path, rows))
    assert {name: row["value"] for name, row in found.items()} == pytest.approx(truth, rel=1e-3)


def test_what_rows_cannot_tell_apart_keeps_the_bases_value(tmp_path: Path) -> None:
    base = load_stack("harp")
    found = derived(save(tmp_path, [stream(1e-9, 1500)] * 5))
    assert set(found) == {"cost_per_byte"}
    assert found["cost_per_byte"]["value"] == pytest.approx(
        1e-9 - base.cost_per_packet.value / 1428, rel=1e-6, abs=0)
    ping = {"kind": "pingpong", "size_bytes": 8, "time_s": 60e-6}
    found = derived(save(tmp_path, [ping] * 4))
    assert set(found) == {"start_latency"}
    assert found["start_latency"]["value"] == pytest.approx(
        30e-6 - base.cost_per_message.value, rel=1e-3)


BENCH = [
    {"id": "udp-tcp", "value": 20.0, "unit": "Gb/s", "reference": 15, "ratio": 1.3, "ok": True},
    {"id": "frame-cost", "value": 200, "unit": "ns", "target": 300},
    {"id": "mem-rtt", "value": 0.6, "unit": "µs"},
    {"id": "zc-tcp", "value": 30.0, "unit": "Gb/s"},
]


def test_rows_of_our_own_benchmark(tmp_path: Path) -> None:
    path, output = save(tmp_path, BENCH), tmp_path / "out.yaml"
    found = derived(path, "-o", output)
    assert found["cost_per_packet"]["value"] == pytest.approx(200e-9)
    assert found["cost_per_byte"]["value"] == pytest.approx(
        0.4e-9 - 200e-9 / 1428, rel=1e-6, abs=0)
    assert found["cost_per_message"]["value"] == pytest.approx(
        0.3e-6 - 64 * 0.4e-9, rel=1e-3)
    assert "Not used: zc-tcp" in run("--stack", "harp", "--from", path).stdout
    # One row a parameter shows no scatter, so an interval of some width is assumed.
    for row in found.values():
        assert row["high"] / row["value"] > 1.1
    assert "assumed scatter" in output.read_text()


def test_the_file_that_is_written_is_a_stack_with_its_sources(tmp_path: Path) -> None:
    output = tmp_path / "out.yaml"
    path = save(tmp_path, nccl_log(ring_time(40e-6, 0.5e-9, ranks=2), PAIR, noise=0.03), "a b.log")
    first = run("--stack", "harp", "--from", path, "-o", output)
    text = output.read_bytes()
    stack = load_set(output, StackSet)
    assert stack.base == "harp"
    assert stack.cost_per_packet is None
    for figure in (stack.cost_per_byte, stack.start_latency):
        assert figure is not None
        assert figure.confidence == "measured"
        assert figure.source.startswith("a b.log (sha256 ")
        assert figure.low is not None
        assert figure.low < figure.value
    assert first.output == run("--stack", "harp", "--from", path, "-o", output).output
    assert output.read_bytes() == text
    assert run("--stack", "harp", "--from", path, "-o", "-").stdout.encode() == text


PING = {"kind": "pingpong", "size_bytes": 8, "time_s": 1e-5}
BAD_JSON = {
    "syntax": ('[{"id": "udp-tcp",]', "is not JSON"),
    "NaN": ('[{"id": "udp-tcp", "value": NaN, "unit": "Gb/s"}]', "NaN is not a number"),
    "deep": ("[" * 100_000, "is not JSON"),
    "mapping": ({"id": "udp-tcp"}, "a list of measurements"),
    "empty list": ([], "a list of measurements"),
    "numbers": ([1, 2], "[0]: found 1"),
    "unknown key": ([PING | {"sise_bytes": 1}], "did you mean 'size_bytes'"),
    "unknown kind": ([PING | {"kind": "pingpng"}], "did you mean 'pingpong'"),
    "no kind": ([{"time_s": 1.0}], "[0].kind: is missing"),
    "no size": ([{"kind": "pingpong", "time_s": 1.0}], "[0].size_bytes: is missing"),
    "no time": ([{"kind": "stream"}], "neither time_s nor rate_bps"),
    "rate of a pingpong": ([{"kind": "pingpong", "size_bytes": 8, "rate_bps": 1.0}],
                           "without time_s"),
    "both": ([{"kind": "stream", "size_bytes": 8, "time_s": 1.0, "rate_bps": 1.0}], "or both"),
    "zero time": ([PING | {"time_s": 0}], "[0].time_s: found 0"),
    "negative": ([PING, PING | {"time_s": -1.0}], "[1].time_s: found -1.0"),
    "text": ([PING | {"time_s": "1ms"}], "[0].time_s: found '1ms'"),
    "infinite": ('[{"kind": "stream", "rate_bps": 1e999}]', "[0].rate_bps"),
    "half a flow": ([{"kind": "stream", "rate_bps": 1e9, "flows": 0.5}], "[0].flows"),
    "mtu": ([stream(1e-9, 1500) | {"mtu": 60}], "[0].mtu"),
    "bench without value": ([{"id": "udp-tcp", "unit": "Gb/s"}], "[0].value: is missing"),
    "bench null": ([{"id": "udp-tcp", "value": None, "unit": "Gb/s"}], "[0].value"),
    "bench unit": ([{"id": "mem-rtt", "value": 1, "unit": "ns"}], "mem-rtt in 'ns'"),
    "bench ids": ([{"id": "udp-tpc", "value": 1, "unit": "Gb/s"}], "did you mean 'udp-tcp'"),
    "faster than the base": ([PING | {"time_s": 1e-9}], "not fitted take"),
}


@pytest.mark.parametrize("case", BAD_JSON)
def test_bad_measurements_are_refused_in_one_sentence(tmp_path: Path, case: str) -> None:
    content, says = BAD_JSON[case]
    text = content if isinstance(content, str) else json.dumps(content)
    path, output = save(tmp_path, text, "bad.json"), tmp_path / "out.yaml"
    sentence = refused(run("--stack", "harp", "--from", path, "-o", output))
    assert says in sentence
    assert not output.exists()


# ---- the command

@pytest.mark.parametrize(("arguments", "says"), [
    (["--stack", "hrap", "--from", "GOOD"], "did you mean 'harp'"),
    (["--stack", "harp", "--from", "missing.json"], "cannot be read"),
    (["--stack", "harp", "--from", "."], "is a directory"),
    (["--stack", "harp", "--from", "GOOD", "--topology", "missing.yaml"], "cannot be read"),
    (["--stack", "harp", "--from", "GOOD", "-o", "GOOD"], "already the input file"),
    (["--stack", "harp", "--from", "GOOD", "-o", "out.txt"], "must end in one of"),
    (["--stack", "harp", "--from", "GOOD", "-o", "none/out.yaml"], "no directory"),
    (["--stack", "harp", "--from", "GOOD", "-o", "-", "--json"], "already the target of -o"),
    (["missing.yaml"], "cannot be read"),
])
def test_wrong_options_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                   arguments: list[str], says: str) -> None:
    monkeypatch.chdir(tmp_path)
    good = save(tmp_path, GOOD, "good.yaml")
    sentence = refused(run(*[str(good) if word == "GOOD" else word for word in arguments]))
    assert says in sentence
    assert [path.name for path in tmp_path.iterdir()] == ["good.yaml"]


@pytest.mark.parametrize("arguments", [
    [], ["--stack", "harp"], ["--from", "x"], ["t.yaml", "--stack", "harp", "--from", "x"],
    ["t.yaml", "-o", "x.yaml"], ["t.yaml", "--topology", "x.yaml"]])
def test_options_that_do_not_go_together_are_refused(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "--stack and --from" in result.stderr


def test_rows_without_any_cost_of_the_stack_are_refused() -> None:
    with pytest.raises(ValueError, match="nothing of the stack"):
        derive([], [], load_stack("harp"))


def test_rows_that_follow_no_single_cost_are_said_to(tmp_path: Path) -> None:
    def time_s(size: int) -> float:
        return 1e-4 + size * (1e-10 if size < 2**18 else 4e-9)

    sizes = [2**k for k in range(12, 26)]
    path = save(tmp_path, nccl_log(time_s, PAIR, sizes=sizes))
    text = " ".join(run("--stack", "harp", "--from", path).stdout.split())
    assert "another algorithm or protocol?" in text


def test_equations_count_what_they_are_told() -> None:
    equation = Equation(1.0, {"cost_per_byte": 2.0})
    assert equation.cost_s(("cost_per_byte", "cost_per_packet"),
                           {"cost_per_byte": 3.0, "cost_per_packet": 5.0}) == 6.0


# ---- docs/calibrate.md

def documented(section: str) -> set[str]:
    """The keys of the last table of a section."""
    text = (ROOT / "docs" / "calibrate.md").read_text(encoding="utf-8")
    table = text.split(f"## {section}\n", 1)[1].split("\n## ")[0].split("`--json` prints:")[1]
    return {line.split("`")[1] for line in table.splitlines() if line.startswith("| `")}


def keys(document: dict[str, Any]) -> set[str]:
    return set(document) | {f"parameters[].{key}" for key in document["parameters"][0]}


def test_docs_list_exactly_the_keys_of_json(tmp_path: Path) -> None:
    fitted = json.loads(run(TACO, "--json").stdout)
    assert documented("From published rows") == keys(fitted)
    measured = json.loads(run("--stack", "harp", "--from", save(tmp_path, BENCH), "--json").stdout)
    assert documented("From measurements") == keys(measured)


def test_docs_list_exactly_the_keys_of_a_measurement_and_the_ids() -> None:
    text = (ROOT / "docs" / "calibrate.md").read_text(encoding="utf-8")
    table = text.split("| key | meaning |\n|---|---|\n| `kind`")[1].split("\n\n")[0]
    rows = [line.split("`")[1] for line in table.splitlines()[1:]]
    assert ["kind", *rows] == list(Measured.model_fields)
    ids = text.split("| id | taken as |")[1].split("\n\n")[0]
    assert set(re.findall(r"`([a-z]+-[a-z]+)`", ids)) == set(BENCH_IDS)
