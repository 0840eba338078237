"""Stack parameters from measurements: what was put in comes out; bad files say what is wrong."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.calibration.derive import Equation, derive, estimate
from sim.calibration.measurements import BENCH as BENCH_IDS
from sim.calibration.measurements import Measured
from sim.schema.parameters import StackSet, load_set, load_stack
from tests.support.calibrate_runs import GOOD, PAIR, ROOT, TACO, derived, refused, run, save
from tests.support.nccl_samples import SIZES, nccl_log, ring_time

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

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


def test_indistinguishable_parameters_keep_the_base_s_value(tmp_path: Path) -> None:
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
    "faster than the base": ([PING | {"time_s": 1e-9}], "not fitted alone take"),
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
    with pytest.raises(ValueError, match="do not depend on the stack"):
        derive([], [], load_stack("harp"))


def test_rows_that_follow_no_single_cost_are_said_to(tmp_path: Path) -> None:
    def time_s(size: int) -> float:
        return 1e-4 + size * (1e-10 if size < 2**18 else 4e-9)

    sizes = [2**k for k in range(12, 26)]
    path = save(tmp_path, nccl_log(time_s, PAIR, sizes=sizes))
    text = " ".join(run("--stack", "harp", "--from", path).stdout.split())
    assert "another algorithm or protocol?" in text


def test_equations_count_the_given_multiply_adds() -> None:
    equation = Equation(1.0, {"cost_per_byte": 2.0})
    assert equation.cost_s(("cost_per_byte", "cost_per_packet"),
                           {"cost_per_byte": 3.0, "cost_per_packet": 5.0}) == 6.0


# ---- docs/use/calibrate.md

def documented(section: str) -> set[str]:
    """The keys of the last table of a section."""
    text = (ROOT / "docs" / "use" / "calibrate.md").read_text(encoding="utf-8")
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
    text = (ROOT / "docs" / "use" / "calibrate.md").read_text(encoding="utf-8")
    table = text.split("| key | meaning |\n|---|---|\n| `kind`")[1].split("\n\n")[0]
    rows = [line.split("`")[1] for line in table.splitlines()[1:]]
    assert ["kind", *rows] == list(Measured.model_fields)
    ids = text.split("| id | taken as |")[1].split("\n\n")[0]
    assert set(re.findall(r"`([a-z]+-[a-z]+)`", ids)) == set(BENCH_IDS)
