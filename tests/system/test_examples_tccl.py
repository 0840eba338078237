"""examples/tccl: probe, plan, run, lose a spine, plan anew, run on, diagnose."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from lab.namespace import why_unusable
from tests.support import ROOT


@pytest.mark.long
@pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
def test_the_example_keeps_flows_apart_before_and_after_a_failure():
    done = subprocess.run([sys.executable, ROOT / "examples" / "tccl" / "run.py"],
                          capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert "24 source ports map to 4 paths" in said
    assert "1 paths moved" in said
    assert "is valid: every flow still takes its planned links" in said
    assert "\nport 10.0.0.3 of host-2, outbound: carries nothing" in done.stdout
    runs = [[round(float(figure) / 4.2) for figure in re.findall(r"spine\d ([\d.]+)", line)]
            for line in done.stdout.splitlines() if "MB by" in line]
    *_, planned, lost, repaired = runs
    assert sorted(planned) == [0, 1, 1, 1]
    assert lost[1] == repaired[1] == 0
    assert max(lost) == 2
    assert repaired == [1, 0, 1, 1]
