"""Loops of accelerate, transformers and Lightning over the backend lightcc, two ranks each."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support import PATIENCE_S, ROOT
from tests.support.levels import long


@long
@pytest.mark.parametrize("library", ["accelerate", "transformers", "lightning"])
def test_a_tiny_loop_trains_all_ranks_alike(library, tmp_path):
    pytest.importorskip(library)
    done = subprocess.run(
        [sys.executable, "-m", "harp.cli.main", "run", "-np", "2", sys.executable, "-m",
         "tests.harp.lightcc.torch.trainers_rank", library, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (tmp_path / f"{rank}.bin" for rank in (0, 1))
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size > 0
