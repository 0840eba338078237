"""Any value at any place of a file of measurements gives parameters or one sentence."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.calibration.nccl_json import read_nccl
from sim.calibration.stack_file import calibrate
from sim.schema import TopologyError
from tests.sim.calibration import test_iperf3, test_nccl_json
from tests.support.calibrate_runs import GOOD
from tests.support.json_changes import anything, changed, one_sentence_at_most, places

if TYPE_CHECKING:
    from pathlib import Path

OURS = [{"kind": "stream", "rate_bps": 2.1e10, "flows": 1, "cores": 1, "mtu": 1500},
        {"kind": "pingpong", "size_bytes": 64, "time_s": 3e-5},
        {"id": "udp-tcp", "value": 21.3, "unit": "Gb/s"}]
DOCUMENTS: dict[str, Any] = {"iperf3": test_iperf3.document(), "ours": OURS}
PLACES = [(name, place) for name, document in DOCUMENTS.items() for place in places(document)]
NCCL = test_nccl_json.document(GOOD)
ALL = settings(max_examples=150, deadline=None,
               suppress_health_check=[HealthCheck.function_scoped_fixture])


@ALL
@given(place=st.sampled_from(PLACES), value=anything)
def test_of_iperf3_or_ours(tmp_path: Path, place: Any, value: Any) -> None:
    name, path = place
    (tmp_path / "in").write_text(json.dumps(changed(DOCUMENTS[name], *path, value=value)))
    with one_sentence_at_most(TopologyError):
        calibrate("kernel-tcp", tmp_path / "in", None)


@ALL
@given(place=st.sampled_from(places(NCCL)), value=anything)
def test_of_nccl_tests(place: Any, value: Any) -> None:
    with one_sentence_at_most(TopologyError, "x"):
        read_nccl(json.dumps(changed(NCCL, *place, value=value)), "x")


def test_processes_with_a_million_ranks_each_are_refused_at_once() -> None:
    made = changed(changed(NCCL, "config", "nthreads", value=1_000_000), "config", "ngpus",
                   value=1_000_000)
    with pytest.raises(TopologyError, match="ranks each; allowed: 1,000,000 ranks"):
        read_nccl(json.dumps(made), "x")


def test_a_key_that_stands_twice_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "in").write_text('[{"kind": "stream", "rate_bps": 1, "rate_bps": 2}]')
    with pytest.raises(TopologyError, match="key 'rate_bps' stands twice"):
        calibrate("kernel-tcp", tmp_path / "in", None)
