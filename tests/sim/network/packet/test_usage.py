"""Utilisation at fidelity packet: that of flow, as far as the two move the same bytes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from click.testing import CliRunner

from sim.answer.scenario import Settings, run_scenario
from sim.run import main
from tests.support.cluster_files import cluster, topology, write
from tests.support.levels import long

if TYPE_CHECKING:
    from pathlib import Path

    from sim.records.results import LinkUse

HARP = {"rate_bps": 10e9, "workload": {"model": "deepfm", "batch": 128, "framework": "free"},
        "scenario": {"stack": "harp"}}


def seconds_of_use(use: LinkUse) -> dict[str, float]:
    """Seconds at full rate of each resource during the step."""
    return dict(zip(use.names, use.share @ np.diff(use.times_s), strict=True))


@pytest.mark.parametrize("vpc", [None, {"vnics": 1, "host_rate": "5Gbps"}])
def test_resources_carry_what_they_carry_in_flow(tmp_path: Path,
                                                 vpc: dict[str, str] | None) -> None:
    built = cluster(tmp_path, hosts=4, gpus=2, vpc=vpc, **HARP)
    flow, packet = ({name: s for row in run_scenario(
        built, built.topology.scenarios[0], 8, Settings(record_links=True, fidelity=fidelity))
        if row.links is not None for name, s in seconds_of_use(row.links).items()}
        for fidelity in ("flow", "packet"))
    busy = [name for name, used_s in flow.items() if used_s > 0.05 * max(flow.values())]
    assert len(busy) > 8
    for name in busy:
        assert packet[name] == pytest.approx(flow[name], rel=0.08), name


@long
def test_trace_shows_links_over_time(tmp_path: Path) -> None:
    path, trace = write(tmp_path, topology(**HARP)), tmp_path / "t.json"
    done = CliRunner().invoke(main, [str(path), "--fidelity", "packet", "--trace", str(trace),
                                     "--plot", str(tmp_path / "p.svg"), "--quiet"])
    assert done.exit_code == 0, done.output
    counters = [event for event in json.loads(trace.read_text())["traceEvents"]
                if event["ph"] == "C" and event["name"].startswith("eth0->switch0")]
    assert len(counters) > 5
    assert (tmp_path / "p.svg").stat().st_size > 10_000
