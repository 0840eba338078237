"""The tables of a comparison."""

from __future__ import annotations

import pytest

from tests.sim.test_compare import compare, document
from tests.support.cluster_files import topology


def test_money_stands_beside_the_rows(tmp_path):
    old = topology() | {"prices": {"hosts": {"h": 10.0}, "samples": 1e6}}
    new = topology(rate_bps=400e9) | {"prices": {"hosts": {"h": 12.0}, "samples": 1e6}}
    (row,) = document(tmp_path, old, new)["rows"]
    assert (row["before"]["cost_day"], row["after"]["cost_day"]) == (480, 576)
    assert row["after"]["cost_goal"] == pytest.approx(
        24 * 1e6 / row["after"]["images_per_s"] / 3600)
    assert "USD before" in compare(tmp_path, old, new, "--draws", "0").stdout
