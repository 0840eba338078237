"""Shipped files after an edit: the answer of another cluster, not a complaint about the old one."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from sim.answer.answer import answer
from sim.answer.scenario import Run
from sim.cluster.cluster import Cluster
from sim.schema import load
from tests.support import ROOT
from tests.support.levels import long_except

if TYPE_CHECKING:
    from pathlib import Path

TACO = (ROOT / "topologies/taco-vgg16-v100-25g.yaml").read_text("utf-8")
DUAL = (ROOT / "topologies/dual-tor-failover.yaml").read_text("utf-8")


@pytest.mark.parametrize(("old", "new"), long_except([
    ("model: vgg16", "model: resnet50"), ("batch: 128", "batch: 64"),
    ("stack: taco-tcp, allreduce: ring, gpus: [1, 8, 16]",
     "stack: rdma, allreduce: ring, gpus: [1, 8, 16]"),
    ("23.2547TFLOPS", "100TFLOPS")], ("model: vgg16", "model: resnet50")))
def test_one_line_changed_gives_another_answer_with_intervals(tmp_path: Path, old: str,
                                                              new: str) -> None:
    assert old in TACO
    path = tmp_path / "edited.yaml"
    path.write_text(TACO.replace(old, new))
    topology = load(path)
    shown = [s for s in topology.scenarios if s.name in ("Horovod+TCP", "flat top-k+HARP")]
    rows = answer(Cluster(topology), shown, draws=6).scenarios
    found = [row.interval for row in rows if row.interval is not None]
    assert found
    assert not any(interval.refitted for interval in found)
    for row in rows:
        if row.interval is not None:
            low, high = row.interval.low_images_per_s, row.interval.high_images_per_s
            assert low <= row.interval.median_images_per_s <= high


def test_calibrate_says_that_the_file_is_stale_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "edited.yaml"
    path.write_text(TACO.replace("model: vgg16", "model: resnet50"))
    run = subprocess.run([sys.executable, "-m", "sim.calibrate", str(path)], cwd=ROOT,
                         capture_output=True, text=True, check=False)
    assert run.returncode in (1, 2)
    assert run.stderr.startswith("error: ")
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("at_ms", [1, 950, 1100, 1300])
def test_a_link_that_fails_while_messages_are_on_their_way_is_routed_around(tmp_path: Path,
                                                                           at_ms: int) -> None:
    """Found by review: flows that began after the fault took the routes from before it."""
    head = DUAL.split("scenarios:")[0].replace(
        "frameworks:",
        "stacks:\n  slow: {base: rdma, start_latency: 5ms, flow_rate: 10Gbps}\n\nframeworks:")
    path = tmp_path / "failing.yaml"
    path.write_text(head + f"""scenarios:
  - {{name: s, stack: slow, steps: 2, faults: [p], fusion: {{rule: size}}}}
faults:
  - {{name: p, kind: link-down, link: a100-0/bond0-tor0a, at: {at_ms}ms, detection: 0ms,
     recovery: 0.1ms}}
""")
    topology = load(path)
    cluster = Cluster(topology)
    (row,) = Run(cluster, topology.scenarios[0], cluster.gpus).go()
    assert 0 < row.step_s < 60
