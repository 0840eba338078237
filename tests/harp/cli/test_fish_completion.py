"""Completion by fish, with whole descriptions."""

from __future__ import annotations

import os
import re
import subprocess
import sys


def test_fish_splits_an_answer_at_its_first_comma() -> None:
    """A description may have more: "... of this Dask scheduler, e.g. tcp://10.0.0.1:8786."."""
    script = subprocess.run([sys.executable, "-m", "harp.cli.main"], capture_output=True, text=True,
                            check=False, env={**os.environ, "_HARP_COMPLETE": "fish_source"}).stdout
    splits = re.findall(r"string split.*completion", script)
    assert splits == ['string split --max 1 "," $completion']
