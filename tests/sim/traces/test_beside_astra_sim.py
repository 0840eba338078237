"""ASTRA-sim's published microbenchmarks beside ours: the table of docs/use/traces.md."""

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

RATE_BYTES_PER_NS = 50 * 2**30 / 1e9
"""50 GB/s as ASTRA-sim's analytical network takes them (common/NetworkFunction.cpp)."""
LATENCY_NS, END_NS, CHUNKS, MEMORY_BYTES_PER_NS = 500, 10, 4, 1600
"""Of its examples Ring_16npus.yml, Ring_8npus.yml and Ring_4chunks.json."""
PUBLISHED_NS = {"all-gather": 323_560, "all-reduce": 64_440}
"""Cycles of 1 ns in its documentation: Ring_allgather_16npus, and AllReduce_1MB on 8 NPUs."""
RANKS = {"all-gather": 16, "all-reduce": 8}


def astra_sim_ns(kind: str) -> int:
    """One chunk at a time, a message after the other; half of an all-reduce's are added up.

    What is added up is read twice and written once (system/PacketBundle.cc), in whole ns.
    """
    ranks = RANKS[kind]
    steps, share = (2 * (ranks - 1), ranks) if kind == "all-reduce" else (ranks - 1, 1)
    nbytes = MIB // share // CHUNKS
    message = int(nbytes / RATE_BYTES_PER_NS) + LATENCY_NS + END_NS
    added = 3 * int(nbytes / MEMORY_BYTES_PER_NS) * (ranks - 1) if kind == "all-reduce" else 0
    return CHUNKS * (steps * message + added + END_NS)


@pytest.mark.parametrize("kind", PUBLISHED_NS)
def test_the_page_says_what_the_same_trace_takes_here(tmp_path: Path, kind: str) -> None:
    assert astra_sim_ns(kind) == PUBLISHED_NS[kind]
    ranks = RANKS[kind]
    made = cluster(tmp_path, hosts=ranks, rate_bps=RATE_BYTES_PER_NS * 8e9,
                   scenario={"allreduce": "ring"},
                   stacks={"ideal": IDEAL | {"start_latency": "500ns"}})
    trace = load_traces(save(tmp_path, *[[collective(1, kind, MIB)]] * ranks), ranks=ranks)
    ours_us = replay(made, made.topology.scenarios[0], trace).total_s * 1e6
    page = (ROOT / "docs" / "use" / "traces.md").read_text()
    published, ours, alone = map(float, re.search(
        rf"^\| {kind}.*? \| ([\d.]+) us \| ([\d.]+) us \| ([\d.]+) us \|$", page,
        re.MULTILINE).groups())
    steps, share = (2 * (ranks - 1), ranks) if kind == "all-reduce" else (ranks - 1, 1)
    alone_us = steps * MIB / share / RATE_BYTES_PER_NS / 1e3
    assert published == pytest.approx(PUBLISHED_NS[kind] / 1e3, abs=0.005)
    assert ours == pytest.approx(ours_us, abs=0.005)
    assert alone == pytest.approx(alone_us, abs=0.05)
    assert alone_us < ours_us < alone_us + steps * 0.5 + 1, "bytes, and latencies in part hidden"
