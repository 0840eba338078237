"""A file of measurements in JSON."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from sim.calibration.measurements import BENCH as BENCH_IDS
from sim.calibration.measurements import Measured
from tests.support.calibrate_runs import ROOT, derived, refused, run, save

if TYPE_CHECKING:
    from pathlib import Path


def stream(cost_s: float, mtu: int, *, cores: float = 1.0) -> dict[str, Any]:
    return {"kind": "stream", "rate_bps": 8 * cores / cost_s, "cores": cores, "mtu": mtu}


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


def test_docs_list_exactly_the_keys_of_a_measurement_and_the_ids() -> None:
    text = (ROOT / "docs" / "use" / "calibrate.md").read_text(encoding="utf-8")
    table = text.split("| key | meaning |\n|---|---|\n| `kind`")[1].split("\n\n")[0]
    rows = [line.split("`")[1] for line in table.splitlines()[1:]]
    assert ["kind", *rows] == list(Measured.model_fields)
    ids = text.split("| id | taken as |")[1].split("\n\n")[0]
    assert set(re.findall(r"`([a-z]+-[a-z]+)`", ids)) == set(BENCH_IDS)
