"""A table for NCCL's tuner out of logs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from harp.collectives.tuning import Row, Tuning
from tests.sim.test_tune import run, write_log

if TYPE_CHECKING:
    from pathlib import Path


def test_a_table_from_measurements(tmp_path: Path) -> None:
    own = write_log(tmp_path / "own.log", {1024: 100, 4096: 100, 16384: 100, 65536: 100})
    tree = write_log(tmp_path / "tree.log", {1024: 50, 4096: 60, 16384: 99.5, 65536: 300})
    ring = write_log(tmp_path / "ring.log", {1024: 90, 4096: 90, 16384: 120, 65536: 80})
    done = run("--measured", f"nccl={own}", "--measured", f"Tree LL={tree}",
               "--measured", f"Ring Simple={ring}", "-o", tmp_path / "t.json")
    assert done.exit_code == 0, done.stderr
    made = Tuning.from_json((tmp_path / "t.json").read_text())
    one, = made.communicators
    assert (one.ranks, one.nodes) == (4, 2)
    gain = round(math.sqrt(100 / 50 * 100 / 60), 3)
    assert one.rows == (
        Row("AllReduce", 1024, 8192, "Tree", "LL", 0, gain),
        Row("AllReduce", 32769, 65536, "Ring", "Simple", 0, 1.25))
    assert (made.source["kind"], made.source["files"]) == (
        "measured", ["own.log", "tree.log", "ring.log"])
