"""Costs of a stack are the same at flow and at packet, for any figures in the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sim.answer.answer import answer
from sim.answer.scenario import Settings, run_scenario
from tests.support.cluster_files import cluster

if TYPE_CHECKING:
    from pathlib import Path


def steps_s(folder: Path, figures: dict[str, float], **given: Any) -> dict[str, float]:
    """Step time at each fidelity."""
    built = cluster(folder, hosts=4, workload={
        "model": "deepfm", "batch": 128, "framework": "free"}, scenario={"stack": "harp"}, **given)
    return {fidelity: run_scenario(built, built.topology.scenarios[0], 4, Settings(
        figures, fidelity=fidelity))[0].step_s for fidelity in ("flow", "packet")}


@pytest.mark.parametrize("rate_bps", [10e9, 100e9])
@pytest.mark.parametrize("deviation", [0.5, 2.0])
def test_deviation_moves_packet_as_it_moves_flow(tmp_path: Path, rate_bps: float,
                                                 deviation: float) -> None:
    plain = steps_s(tmp_path, {}, rate_bps=rate_bps)
    moved = steps_s(tmp_path, {"harp.deviation": deviation}, rate_bps=rate_bps)
    times = {fidelity: moved[fidelity] / plain[fidelity] for fidelity in plain}
    assert times["packet"] == pytest.approx(times["flow"], rel=0.1)


def test_intervals_are_as_wide_as_those_of_flow(tmp_path: Path) -> None:
    built = cluster(tmp_path, hosts=2, rate_bps=100e9, workload={
        "model": "deepfm", "batch": 128, "framework": "free"}, scenario={"stack": "harp"})
    widths = []
    for fidelity in ("flow", "packet"):
        report = answer(built, built.topology.scenarios, draws=8, fidelity=fidelity)
        interval = report.scenarios[0].interval
        assert interval is not None
        assert interval.draws == 8
        widths.append(interval.high_images_per_s / interval.low_images_per_s)
    assert widths[1] == pytest.approx(widths[0], rel=0.1)
    assert widths[0] > 1.1
