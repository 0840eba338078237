"""Comparisons of the subject `lightcc`; the clock's figures are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from lab.namespace import why_unusable
from tests.support import ROOT
from tests.support.levels import long

pytestmark = pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())


def run(*options):
    return subprocess.run([sys.executable, "-m", "bench", "lightcc", *options],
                          capture_output=True, text=True, check=False, timeout=900, cwd=ROOT)


@long
def test_a_row_is_measured_beside_gloo():
    pytest.importorskip("torch")
    done = run("--json", "--rounds", "1", "--seconds", "0.1", "--only", "ar-8B")
    assert done.returncode in (0, 1), done.stderr
    found, = json.loads(done.stdout)
    assert found["id"] == "ar-8B"
    assert found["reference_is"].startswith("gloo")
    assert found["ratio"] == pytest.approx(found["value"] / found["reference"])


@pytest.mark.long
def test_the_simulated_row_is_held_within_bounds_of_the_measured_one():
    pytest.importorskip("torch")
    done = run("--json", "--rounds", "1", "--only", "ddp-2d-topk,ddp-sim-2d-topk")
    assert done.returncode in (0, 1), done.stderr
    measured, simulated = json.loads(done.stdout)
    assert simulated["reference"] == measured["value"]
    assert 0 < simulated["value"] <= 4  # 250 ms of computing are in each step
    assert simulated["ok"] == (abs(simulated["ratio"] - 1) <= 0.15)


def test_the_host_is_measured_without_the_rows_that_are_judged():
    """Of what ranks answer, times become figures a byte or an element of the simulator's file."""
    from bench.lightcc.host_costs import ELEMENTS, MEMORY_BYTES, STREAM_BYTES, calibrate
    from sim.schema import load

    asked = []

    def ask(do, **more):
        asked.append((do, more.get("hook")))
        seconds = {"train": 0.26, "memory": 0.01, "stream": 0.2}.get(do, 0.004)
        return [{"seconds": 2 * seconds, "times": 2}] * 4

    file = ROOT / "bench" / "lightcc" / "lightcc.yaml"
    changes = calibrate(ask, load(file), {"step_s": 0.25}, 10_000_000)
    assert {do for do, _ in asked} == {"train", "memory", "stream", "select", "scatter", "cast"}
    assert ("train", "alone") in asked
    assert changes[0] == "frameworks.host.copy_per_element=1.0000ns"
    assert f"frameworks.host.cast_per_element={0.004e9 / ELEMENTS:.4f}ns" in changes
    assert f"hosts[0].nvlink.rate={MEMORY_BYTES / 1e7:.3f}GB/s" in changes
    assert f"stacks.host-harp.flow_rate={8 * STREAM_BYTES / 0.2e6:.1f}Mbps" in changes
    load(file, changes)


@long
def test_a_vector_in_few_bits_is_predicted_beside_its_row():
    pytest.importorskip("torch")
    done = run("--json", "--rounds", "1", "--seconds", "0.5", "--only", "sim-int8-25m,int8-25m-2d")
    assert done.returncode in (0, 1), done.stderr
    measured, simulated = sorted(json.loads(done.stdout), key=lambda row: row["id"])
    assert simulated["reference"] == measured["value"]
    line_ms = 1e3 * 8 * (25 << 18) / 1e9  # a byte of each element leaves a host, one comes
    assert line_ms < simulated["value"] < 10 * line_ms


def test_a_row_that_is_not_there_is_named():
    done = run("--only", "ar-9B")
    assert done.returncode == 2
    assert "there is no row 'ar-9B'; there are ddp-2d-topk" in done.stderr
