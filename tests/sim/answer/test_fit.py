"""Fits: they give their rows back, and only about the cluster that was fitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st

from sim.answer.fit import find_root, find_row, fit, fit_slopes, present_value
from sim.answer.scenario import Settings
from sim.answer.uncertainty import FIT_ACCURACY
from sim.cluster.cluster import Cluster
from sim.run import main as run
from sim.schema import TopologyError, load
from tests.support import ROOT

if TYPE_CHECKING:
    from pathlib import Path

TACO = ROOT / "topologies" / "taco-vgg16-v100-25g.yaml"
SMALL = """
name: small
hosts:
  - name: h
    count: 2
    gpus: {count: 2, model: V100, effective: 20TFLOPS}
    nvlink: {rate: 130GB/s}
    nics: [{name: eth, rate: 25Gbps}]
fabric: {template: single-switch}
workload: {model: resnet50, batch: 32}
scenarios: [{name: ring, stack: STACK, gpus: [1, 4]}]
expect:
  - {scenario: ring, gpus: GPUS, images_per_s: 400, kind: fitted, fits: NAME, within: 2%,
     source: us}
"""


def small(folder: Path, *, stack: str = "kernel-tcp", gpus: int = 4,
          name: str = "kernel-tcp.cost_per_byte", rate: float = 400) -> Path:
    path = folder / "small.yaml"
    path.write_text(SMALL.replace("STACK", stack).replace("GPUS", str(gpus)).replace("NAME", name)
                    .replace("images_per_s: 400", f"images_per_s: {rate}"))
    return path


def test_a_fit_gives_back_the_value_that_made_the_row(tmp_path: Path) -> None:
    cluster = Cluster(load(small(tmp_path)))
    expect = cluster.topology.expect[0]
    for value in (0.4e-9, 3e-9):
        made = find_row(cluster, expect, Settings({"kernel-tcp.cost_per_byte": value}))
        again = Cluster(load(small(tmp_path, rate=made.images_per_s)))
        assert fit(again, Settings())["kernel-tcp.cost_per_byte"] == pytest.approx(value, rel=1e-3)


def test_a_fit_begins_at_zero_as_well(tmp_path: Path) -> None:
    """With a GPU a host: of several, NCCL's limits hold while NICs alone move the bytes."""
    made = 1e-9

    def alone(rate: float) -> Cluster:
        path = small(tmp_path, stack="rdma", gpus=2, name="rdma.cost_per_byte", rate=rate)
        path.write_text(path.read_text().replace("{count: 2, model", "{count: 1, model")
                        .replace("[1, 4]", "[1, 2]"))
        return Cluster(load(path))

    first = alone(400)
    row = find_row(first, first.topology.expect[0], Settings({"rdma.cost_per_byte": made}))
    cluster = alone(row.images_per_s)
    assert present_value(cluster, "rdma.cost_per_byte") == 0.0
    assert fit(cluster, Settings())["rdma.cost_per_byte"] == pytest.approx(made, rel=1e-3)


@given(st.floats(1e-12, 1e3), st.floats(1e-12, 1e3), st.floats(0.1, 3), st.floats(0, 0.5),
       st.sampled_from([1, -1]), st.none() | st.floats(1e-3, 1e3))
def test_roots_of_monotonic_functions_are_found(root: float, start: float, power: float,
                                                jump: float, sign: int,
                                                slope: float | None) -> None:
    """However wrong the slope is that they are said to have at the start."""
    def excess(value: float) -> float:
        scaled = (value / root) ** power - 1.0
        return sign * (scaled + jump * (scaled > 0))

    assume(1e-4 < start / root < 1e4)
    found = find_root(excess, start, 1e-6, slope and slope / start)
    assert found == pytest.approx(root, rel=2e-5)


@pytest.mark.parametrize(("excess", "start", "slope", "root", "most"), [
    (lambda cost: 2.0 * cost - 2.0, 1.0, None, 1.0, 1),      # right from the start
    (lambda cost: 0.5 * cost - 1.0, 5.0, None, 2.0, 2),      # in proportion
    (lambda cost: 0.1 * cost - 0.2, 5.0, 0.1, 2.0, 2),       # by its slope
    (lambda cost: 0.1 * cost - 0.2, 0.0, 0.1, 2.0, 2),       # the same from nothing
    (lambda cost: cost + 0.01, 0.0, None, 0.0, 2),           # too much even at nothing
    (lambda cost: cost + 0.01, 0.0, 1.0, 0.0, 1),
])
def test_simulations_of_a_fit_are_few(excess, start, slope, root, most) -> None:
    asked = []

    def counted(cost: float) -> float:
        asked.append(cost)
        return excess(cost)

    assert find_root(counted, start, 1e-6, slope) == pytest.approx(root)
    assert len(asked) <= most


def test_slopes_save_a_draw_a_third_of_its_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """And move what is fitted by less than the accuracy of a draw's fits."""
    cluster, rows = Cluster(load(TACO)), []
    slopes = fit_slopes(cluster)
    monkeypatch.setattr("sim.answer.fit.find_row",
                        lambda *given: rows.append(given) or find_row(*given))
    figures = {"horovod.per_tensor": 30e-6, "taco-tcp.cost_per_message": 20e-6}
    found, runs = [], []
    for known in ({}, slopes):
        fitted = fit(cluster, Settings(figures), accuracy=FIT_ACCURACY, slopes=known)
        found.append(fitted)
        runs.append(len(rows))
        rows.clear()
    assert slopes.keys() == found[0].keys() - {"gpus.effective"}
    assert runs[1] <= 2 / 3 * runs[0] + 1
    expect = cluster.topology.expect
    for row in expect:
        if row.fits is not None:
            times = [find_row(cluster, row, Settings(figures | fitted)).step_s for fitted in found]
            assert times[1] == pytest.approx(times[0], rel=2 * FIT_ACCURACY)


def test_a_cost_that_even_at_nothing_is_too_slow_becomes_nothing(tmp_path: Path) -> None:
    path = small(tmp_path, name="kernel-tcp.start_latency", rate=1e6)
    assert fit(Cluster(load(path)), Settings()) == {"kernel-tcp.start_latency": 0.0}


@pytest.mark.parametrize(("name", "gpus", "says"), [
    ("kernel-tcp.cost_per_bite", 4, "names no parameter"),
    ("kernel.cost_per_byte", 4, "names no parameter"),
    ("gpus.count", 4, "names no parameter"),
    ("cost_per_byte", 4, "names no parameter"),
    ("kernel-tcp.description", 4, "names no parameter"),
    ("rdma.cost_per_byte", 4, "has no effect"),
    ("kernel-tcp.cost_per_byte", 1, "has no effect"),
])
def test_an_impossible_fit_is_refused_at_its_place(tmp_path: Path, name: str, gpus: int,
                                                   says: str) -> None:
    with pytest.raises(TopologyError, match=says) as caught:
        fit(Cluster(load(small(tmp_path, name=name, gpus=gpus))), Settings())
    assert caught.value.key == "expect[0].fits"
    assert caught.value.line == 13


# ---- figures of another cluster


def asked(*changes):
    given = [word for change in changes for word in ("--set", change)]
    result = CliRunner().invoke(run, [str(TACO), *given, "--scenario", "Horovod+TCP",
                                      "--draws", "0"])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_the_flagship_holds_its_rows_against_what_was_published():
    assert "fitted" in asked()
    assert "fitted" in asked("hosts[0].gpus.effective=23.3TFLOPS", "description=other words")


@pytest.mark.parametrize("change", [
    "hosts[0].nics[0].rate=100Gbps", "vpc.host_rate=50Gbps", "workload.batch=64",
    "hosts[0].count=4", "fabric={template: leaf-spine, leaves: 2, spines: 1}"])
def test_another_cluster_claims_no_fit(change):
    text = asked(change)
    assert "%  fitted" not in text
    assert "+0.0 %" not in text
    assert "The figures under expect come from another cluster or workload" in " ".join(
        text.split())
