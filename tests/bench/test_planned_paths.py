"""Rows of the subject `planned-paths`; its figures are not judged here."""

import json
import subprocess
import sys

import pytest

from lab.namespace import why_unusable


@pytest.mark.long
@pytest.mark.skipif(bool(why_unusable()), reason=why_unusable())
def test_planned_flows_share_no_link():
    done = subprocess.run([sys.executable, "-m", "bench", "planned-paths", "--json", "--hosts", "4",
                           "--spines", "2", "--draws", "1", "--mib", "1"], capture_output=True,
                          text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = {row["id"]: row for row in json.loads(done.stdout)}
    assert set(rows) == {"one way", "both ways", "two jobs"}
    for row in rows.values():
        assert 0 < row["bound_s"] < row["hashed_most_s"] * 1.1
    for way in ("one way", "both ways"):
        assert rows[way]["planned_load"] == rows[way]["probed_load"] == 1.0
    assert rows["two jobs"]["together_load"] == 1.0
