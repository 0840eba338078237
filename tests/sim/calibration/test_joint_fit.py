"""The fit of stacks to published rows, each row predicted without its source."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from sim.calibration.joint_fit import FITTED, Search, fit_published, marked_rows
from sim.schema.input_errors import TopologyError
from sim.schema.parameters import load_stack
from tests.sim.test_validate import case_of, write
from tests.support.levels import long

if TYPE_CHECKING:
    from pathlib import Path


def synthetic(folder: Path, name: str, source: str, value: str) -> Path:
    """A case of kernel TCP between two hosts, whose one thread is the limit."""
    data = case_of(source=source, figures=[{"scenario": "ring", "size": "256MiB", "busbw": value,
                                            "fits": True}])
    data["topology"] |= {"scenarios": [{"name": "ring", "stack": "kernel-tcp"}]}
    data["topology"]["hosts"][0] |= {"nics": [{"name": "eth", "rate": "100Gbps"}]}
    return write(folder, data, f"{name}.yaml")


def test_a_row_is_left_out_with_all_of_its_source(tmp_path):
    """Two sources that contradict each other: each is predicted by the other's figures alone."""
    slow = synthetic(tmp_path, "slow", "slow", "0.8GB/s")
    fast = synthetic(tmp_path, "fast", "fast", "1.6GB/s")
    fit = fit_published([slow, fast])[0]
    for row in fit.rows:
        other = 1.6e9 if row.row.source == "slow" else 0.8e9
        assert row.left_out / 8 == pytest.approx(other, rel=0.05), row.row.case
    cost = fit.parameters[0]
    packets = 0.2e-6 / 1448  # what the two sources would need, less the cost of packets
    assert cost.high / cost.low == pytest.approx(
        (1 / 1.6e9 - packets) / (1 / 3.2e9 - packets), rel=0.1)


def test_a_figure_of_a_stack_that_is_not_fitted_is_refused(tmp_path):
    data = case_of(figures=[{"scenario": "ring", "size": "256MiB", "busbw": "1GB/s", "fits": True}])
    data["topology"] |= {"scenarios": [{"name": "ring", "stack": "rdma"}]}
    with pytest.raises(TopologyError, match=r"rdma; allowed: figures of kernel-tcp, tcpx"):
        marked_rows([write(tmp_path, data)])


@long
def test_deviation_covers_errors_that_parameters_do_not_explain(tmp_path):
    """Sources that agree leave none; those that differ sixteenfold more than their parameters."""
    same = [synthetic(tmp_path, name, name, "1.2GB/s") for name in ("a", "b")]
    assert fit_published(same)[0].deviation.value == pytest.approx(1.0)
    apart = [synthetic(tmp_path, "slow", "slow", "0.2GB/s"),
             synthetic(tmp_path, "fast", "fast", "3.2GB/s")]
    found = fit_published(apart)[0].deviation
    # Each is missed sixteenfold, and a triangle of that variance reaches further by sqrt(6).
    assert 0.8 * math.sqrt(6) * math.log(16) < math.log(found.value) < math.sqrt(6) * math.log(17)
    assert found.stale


@pytest.mark.long
def test_the_shipped_deviation_is_of_the_rows_of_the_fit():
    deviation = fit_published()[0].deviation
    assert not deviation.stale
    shipped = load_stack("kernel-tcp").deviation
    assert shipped.interval == pytest.approx((1 / deviation.shipped, deviation.shipped), rel=0.01)


@long
def test_a_left_out_prediction_does_not_depend_on_what_was_measured(tmp_path):
    """Another figure in the row itself changes the fit, but not the row's own prediction."""
    fast = synthetic(tmp_path, "fast", "fast", "1.6GB/s")
    found = []
    for value in ("0.8GB/s", "1.2GB/s"):
        slow = synthetic(tmp_path, "slow", "slow", value)
        search = Search("kernel-tcp", marked_rows([slow, fast]))
        found.append(search.prediction(0, search.fit([1])))
    assert found[0] == found[1]


def test_the_fit_gives_back_what_made_the_rows(tmp_path):
    path = synthetic(tmp_path, "one", "one", "1.29GB/s")
    row = marked_rows([path])[0]
    search = Search("kernel-tcp", [row])
    best = search.fit([0])
    assert len(best) == len(FITTED["kernel-tcp"])
    assert search.prediction(0, best) == pytest.approx(row.figure.value, rel=0.03)
