"""ASTRA-sim's published microbenchmark beside ours: the figures of docs/use/traces.md."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from sim.traces.execution_trace import load_traces
from sim.traces.replay import replay
from tests.sim.traces.test_replay import MIB, collective, save
from tests.support import ROOT
from tests.support.cluster_files import IDEAL, cluster

if TYPE_CHECKING:
    from pathlib import Path

PUBLISHED_US = 323.56
"""ASTRA-sim's documentation, Ring_allgather_16npus: 323,560 cycles of 1 ns, 50 GB/s and 500 ns a
link."""
STEPS = 15


def test_the_page_says_what_the_same_trace_takes_here(tmp_path: Path) -> None:
    made = cluster(tmp_path, hosts=16, rate_bps=400e9, scenario={"allreduce": "ring"},
                   stacks={"ideal": IDEAL | {"start_latency": "500ns"}})
    nodes = [collective(1, "all-gather", MIB)]
    trace = load_traces(save(tmp_path, *[nodes] * 16), ranks=16)
    ours_us = replay(made, made.topology.scenarios[0], trace).total_s * 1e6
    page = (ROOT / "docs" / "use" / "traces.md").read_text().replace("\n", " ")
    published, step, ours = map(float, re.search(
        r"takes ([\d.]+) us by its documentation: 15 steps of ([\d.]+) us.*?takes ([\d.]+) us here",
        page).groups())
    assert published == pytest.approx(PUBLISHED_US, abs=0.05)
    assert step * STEPS == pytest.approx(published, rel=0.01)
    assert ours == pytest.approx(ours_us, abs=0.05)
    bytes_us = STEPS * MIB / 50e9 * 1e6
    assert bytes_us < ours_us < bytes_us + STEPS * 0.5, "a ring's bytes, and pieces in flight"
