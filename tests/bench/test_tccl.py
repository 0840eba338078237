"""Rows of the subject `tccl`, and their verdicts; the clock's figures are not judged here."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from bench.row_store import Store
from bench.tccl.features import (
    affinity_gain,
    faults_met,
    jobs_gain,
    ports_share,
    ring_seconds,
    routing_gain,
    scattered,
)
from bench.tccl.goodput import Run, Sample, Trace, lateness
from bench.tccl.judge import Outcome, judge, line
from bench.tccl.scenes import FAULTS, PULLED, Moment, Scene
from lab.namespace import why_unusable
from tests.support import PATIENCE_S
from tests.support.levels import long, long_except

if TYPE_CHECKING:
    from pathlib import Path

FULL = 1e9


def nothing(_: object) -> None:
    """Happens in scenes of this file."""


HALF = Scene("half", (Moment(0.1, "half", nothing, 0.5),), 0.5)


def run_of(*bins: tuple[float, int], lost: int = 0, error: str = "") -> Run:
    """A run from pairs of a goodput's share and the number of bins that have it."""
    bits = [share * FULL * 0.01 for share, count in bins for _ in range(count)]
    return Run(Trace(bits), [], FULL, lost, error, [0.1])


def row_of(run: Run) -> Outcome:
    return judge("packet", HALF, [run], [])[0]


def test_traffic_is_back_when_it_reaches_its_target_to_stay() -> None:
    row = row_of(run_of((1, 10), (0.1, 2), (0.6, 1), (0.1, 1), (0.5, 36)))
    assert row.harp.back_ms == pytest.approx(50)
    assert row.good


@pytest.mark.parametrize("run", [
    run_of((1, 10), (0.4, 40)), run_of((1, 10), (0.1, 12), (0.5, 28)),
    run_of((1, 10), (0.5, 20), (0.2, 20)), run_of((1, 10), (0.5, 40), lost=1),
    run_of((1, 10), (0.5, 40), error="gone")])
def test_a_missed_target_fails(run: Run) -> None:
    assert not row_of(run).good


def test_a_busy_machine_is_noted() -> None:
    samples = [Sample(at_s, 0, 0) for at_s in (0.0, 0.001, 0.002, 0.008, 0.009, 0.010)]
    late = run_of((1, 10), (0.5, 40))._replace(late=lateness(samples))
    assert late.late == pytest.approx(0.6)
    assert "late 60% of the time" in line(row_of(late))
    assert "late" not in line(row_of(late._replace(late=0.0)))


def test_an_event_that_never_came_has_no_number() -> None:
    row = row_of(run_of((1, 10), (0.0, 40)))
    assert math.isinf(row.harp.back_ms)
    assert row.to_json()["harp"]["back_ms"] is None


def table(*words: str) -> list[dict[str, Any]]:
    done = subprocess.run([sys.executable, "-m", "bench", "tccl", "--json", *words],
                          capture_output=True, text=True, check=False, timeout=600)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    assert done.returncode == (not all(row["ok"] for row in found)), done.stderr
    return found


@long
def test_a_pulled_port_costs_its_rate_and_no_more() -> None:
    rows = table("--fidelity", "packet", "--only", PULLED.name)
    assert [row["what"] for row in rows] == ["port pulled", "port back"]
    assert all(row["ok"] for row in rows)
    assert all(row["tcp"]["share"] > 0.9 for row in rows)


def test_a_fluid_loses_the_port_as_well() -> None:
    pulled, back = table("--fidelity", "flow", "--only", PULLED.name)
    assert pulled["ok"]
    assert back["ok"]
    assert pulled["tcp"] is None


@pytest.mark.parametrize("policy", long_except(["2+3", "3+4"], "3+4"))
def test_flows_that_a_bond_hashes_to_one_port_get_its_rate(policy: str) -> None:
    row, = table("--fidelity", "packet", "--only", policy)
    assert row["ok"]
    assert row["tcp"]["share"] == pytest.approx(0.5, abs=0.02)


@long
@pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
def test_real_stacks_lose_nothing_when_a_port_is_pulled() -> None:
    rows = table("--fidelity", "lab", "--only", PULLED.name, "--runs", "1")
    assert [row["what"] for row in rows] == ["port pulled", "port back"]
    for row in rows:
        for stack in ("harp", "tcp"):
            assert row[stack]["lost_bytes"] == 0
            assert not row[stack]["error"]
            assert row[stack]["share"] > 0


@long
@pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
def test_nccl_client_goes_on_when_a_port_is_pulled(tmp_path: Path) -> None:
    picture = tmp_path / "goodput.png"
    pulled, back = table("--fidelity", "lab", "--only", "NCCL client, TCP by", "--runs", "1",
                         "--plot", str(picture))
    assert not pulled["harp"]["error"]
    assert pulled["harp"]["share"] > 0
    assert pulled["tcp"]["share"] < 0.1
    assert back["harp"]["share"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_was_measured_is_kept_and_shown(tmp_path: Path) -> None:
    kept = tmp_path / "tccl.json"
    missed = row_of(run_of((1, 10), (0.0, 40), lost=7))
    feature = {"id": "features: two ports", "reference": "TCP", "ok": True}
    Store(kept).save([missed.to_json(), missed._replace(fidelity="lab").to_json(),
                      feature | {"figures": {"flow": "1.00", "packet": "0.99"}}])
    again = row_of(run_of((1, 10), (0.5, 40)))._replace(tcp=missed.harp)
    Store(kept).save([again.to_json(), feature | {"figures": {"lab": "0.98"}}])
    first, second, third = Store(kept).rows.values()
    assert [Outcome.of(first), Outcome.of(second)] == [again, missed._replace(fidelity="lab")]
    assert third["figures"] == {"flow": "1.00", "packet": "0.99", "lab": "0.98"}
    done = subprocess.run([sys.executable, "-m", "bench", "tccl", "--show", str(kept)],
                          capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert line(again) in done.stdout
    assert "two ports" in done.stdout


@pytest.mark.parametrize("content", long_except(["{", "[]", "{}", "[1]"], "[]"))
def test_a_file_of_something_else_is_one_sentence(tmp_path: Path, content: str) -> None:
    other = tmp_path / "other.json"
    other.write_text(content)
    done = subprocess.run([sys.executable, "-m", "bench", "tccl", "--show", str(other)],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert str(other) in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_unknown_scene_is_refused() -> None:
    done = subprocess.run([sys.executable, "-m", "bench", "tccl", "--only", "earthquake"],
                          capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert "there is no row 'earthquake'; there are both ports" in done.stderr


def test_a_feature_s_figure_is_that_of_its_own_scenes() -> None:
    half = row_of(run_of((1, 10), (0.5, 40)))
    short = row_of(run_of((1, 10), (0.1, 40)))
    rows = [half._replace(scene=PULLED.name), short._replace(scene=PULLED.name),
            half._replace(scene=FAULTS[0].name, tcp=short.harp),
            short._replace(scene=FAULTS[1].name, tcp=half.harp)]
    assert ports_share(rows) == "0.20"
    assert faults_met(rows) == "1 of 2 (1)"
    assert ports_share([]) == faults_met([]) == "-"


def test_a_planned_ring_takes_the_same_time_in_any_order_and_hashed_ones_longer() -> None:
    planned = [ring_seconds("flow", 4, "plan", scattered(seed)) for seed in range(3)]
    assert planned == pytest.approx([planned[0]] * 3)
    assert float(routing_gain("flow").rstrip("x")) > 1.5
    assert float(affinity_gain("flow").rstrip("x")) > 1.5


def test_two_jobs_planned_together_do_not_meet() -> None:
    assert float(jobs_gain("flow").rstrip("x")) >= 1.5
