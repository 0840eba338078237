"""A page or a row of figures names the day, the commit and the machine."""

from __future__ import annotations

import subprocess
from datetime import datetime, timezone

from harp.provenance import dated, stamp
from tests.support import ROOT


def test_the_stamp_names_the_commit() -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True,
                          check=True).stdout
    assert head.startswith(stamp()["commit"].rstrip("+"))


def test_a_machine_is_named_only_beside_what_was_measured() -> None:
    now = stamp()
    assert dated(measured=False) == f"Figures of {now['date']}, commit {now['commit']}.\n"
    assert dated(measured=True) == (
        f"Figures of {now['date']}, commit {now['commit']}, {now['machine']}.\n")


def test_the_day_is_that_of_utc() -> None:
    assert stamp()["date"] == datetime.now(timezone.utc).date().isoformat()
