"""Training with the largest values alone: the law that the subjects `convergence*` show."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support import ROOT
from tests.support.levels import long


@long
def test_top_k_with_feedback_ends_below_top_k_without(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    file = tmp_path / "found.json"
    subprocess.run([sys.executable, "-m", "bench", "convergence", "--share", "0.25", "--seeds", "1",
                    "--save", file], check=True, timeout=900, cwd=ROOT)
    rows = {row["id"]: row["value"] for row in json.loads(file.read_text())}
    for model in ("CNN on digits", "transformer on text"):
        assert rows[f"{model}: top-k"] < rows[f"{model}: top-k without feedback"]
        assert rows[f"{model}: dense"] < rows[f"{model}: top-k without feedback"]


@long
def test_sparse_differences_with_feedback_end_below_those_without(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    file = tmp_path / "found.json"
    subprocess.run([sys.executable, "-m", "bench", "convergence-outer", "--share", "0.25",
                    "--seeds", "1", "--only", "digits: SparseLoCo", "--save", file], check=True,
                   timeout=900, cwd=ROOT)
    fed, lost = json.loads(file.read_text())
    assert fed["value"] < lost["value"]
    assert fed["reference"] < lost["value"]
