"""Prices: what a step, a day and a whole training cost, worked out by hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from sim.run import main
from tests.support.cluster_files import topology, write
from tests.support.sim_runs import rows_of

if TYPE_CHECKING:
    from pathlib import Path


PRICE = 36.0


def file(tmp_path: Path, prices: dict, **top: object) -> Path:
    data = topology(gpus=4, scenario={"gpus": [2, 8]}, **top) | {"prices": prices}
    return write(tmp_path, data)


def test_hosts_are_paid_whole_and_by_the_time_that_they_take(tmp_path: Path) -> None:
    one, two = rows_of(file(tmp_path, {"hosts": {"h": PRICE}, "samples": 1e6}))
    for row, hosts in ((one, 1), (two, 2)):
        cost = row["cost"]
        assert cost["day"] == 24 * PRICE * hosts
        assert cost["step"] == pytest.approx(PRICE * hosts * row["step_ms"] / 3.6e6)
        seconds = 1e6 / row["images_per_s"]
        assert cost["goal_days"] == pytest.approx(seconds / 86400)
        assert cost["goal_cost"] == pytest.approx(PRICE * hosts * seconds / 3600)
        assert cost["goal"] == "1e+06 samples"


def test_a_sample_counts_as_its_tokens(tmp_path: Path) -> None:
    """A sample of bert-base has 128 tokens here."""
    workload = {"model": "bert-base", "batch": 8, "framework": "free"}
    by_tokens = rows_of(file(tmp_path, {"hosts": {"h": PRICE}, "tokens": 128e6},
                             workload=workload))
    by_samples = rows_of(file(tmp_path, {"hosts": {"h": PRICE}, "samples": 1e6},
                              workload=workload))
    assert [row["cost"]["goal_cost"] for row in by_tokens] == [
        row["cost"]["goal_cost"] for row in by_samples]


def test_the_interval_of_the_money_is_that_of_the_rate_turned_over(tmp_path: Path) -> None:
    slow = {"base": "rdma", "cost_per_byte": {"value": "1ns", "low": "0.5ns", "high": "2ns",
                                              "confidence": "assumed", "source": "x"}}
    data = topology(stacks={"ideal": slow}) | {"prices": {"hosts": {"h": PRICE}, "samples": 1e6}}
    done = CliRunner().invoke(main, [str(write(tmp_path, data)), "--draws", "8", "--quiet",
                                     "--json", "-"])
    (row,) = json.loads(done.stdout)["scenarios"]
    low, _, high = row["interval"]["images_per_s"]
    assert row["cost"]["goal_cost_interval"] == pytest.approx(
        [2 * PRICE * 1e6 / rate / 3600 for rate in (high, low)])
