"""What bench/planned_paths.py prints; its figures are not judged here."""

import json
import subprocess
import sys
from pathlib import Path

import netns
import pytest

BENCH = Path(__file__).parent.parent / "bench" / "planned_paths.py"


@pytest.mark.skipif(bool(netns.usable()), reason=netns.usable())
def test_planned_flows_share_no_link():
    done = subprocess.run([sys.executable, str(BENCH), "--json", "--hosts", "4", "--spines", "2",
                           "--draws", "1"], capture_output=True, text=True, check=False,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert set(rows) == {"one way", "both ways"}
    for row in rows.values():
        assert row["planned_load"] == 1.0
        assert 0 < row["bound_s"] < row["planned_most_s"] * 1.1
