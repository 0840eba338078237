"""Training with the largest gradients alone: the law that bench/lightcc_convergence.py shows."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support import ROOT

SCRIPT = ROOT / "bench" / "lightcc_convergence.py"


def test_top_k_with_feedback_ends_below_top_k_without(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    file = tmp_path / "found.json"
    subprocess.run([sys.executable, SCRIPT, "--share", "0.25", "--seeds", "1", "--json", file],
                   check=True, timeout=900)
    found = json.loads(file.read_text())
    assert set(found) == {"CNN on digits", "transformer on text"}
    for runs in found.values():
        loss = {run["arm"]: run["loss"] for run in runs}
        assert loss["top-k"] < loss["top-k without feedback"]
        assert loss["dense"] < loss["top-k without feedback"]
