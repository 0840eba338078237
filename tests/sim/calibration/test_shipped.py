"""Shipped parameters beside the fit of the rows that they are for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sim.calibration.shipped import Comparison, compare, compare_file, verdict
from sim.cluster.cluster import Cluster
from sim.schema import TopologyError, load
from tests.support import ROOT
from tests.support.calibrate_runs import TACO

if TYPE_CHECKING:
    from pathlib import Path

FITTED = sorted(path for path in (ROOT / "topologies").glob("*.yaml")
                if "fits:" in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", FITTED, ids=lambda path: path.stem)
def test_shipped_values_are_those_of_the_fit(path: Path) -> None:
    for comparison in compare(Cluster(load(path))):
        assert comparison.shipped == pytest.approx(comparison.fitted, rel=1e-3), comparison
        if comparison.fitted:  # a row that wants a cost below 0 stays within bounds
            assert abs(comparison.residual) < 1e-5
        assert abs(comparison.residual) <= comparison.expect.within


@pytest.mark.parametrize("path", FITTED, ids=lambda path: path.stem)
def test_no_set_has_more_than_one_free_parameter(path: Path) -> None:
    names = [expect.fits for expect in load(path).expect if expect.fits is not None]
    owners = [name.rpartition(".")[0] for name in names]
    assert len(owners) == len(set(owners)), names


def comparison(shipped: float, fitted: float) -> Comparison:
    return Comparison("kernel-tcp.cost_per_byte", shipped, fitted,
                      load(TACO).expect[2], 0.0)


def test_more_than_half_a_percent_off_is_stale() -> None:
    assert not comparison(1.004e-9, 1e-9).stale
    assert comparison(1.006e-9, 1e-9).stale
    assert comparison(1e-9, 0.0).stale
    assert not comparison(0.0, 0.0).stale
    assert "kernel-tcp.cost_per_byte is more than 0.5 % off" in verdict([comparison(2e-9, 1e-9)])


def test_calibrate_names_the_fingerprint_of_another_cluster(tmp_path):
    path = tmp_path / "other.yaml"
    path.write_text(TACO.read_text().replace("rate: 25Gbps,", "rate: 100Gbps,"))
    with pytest.raises(TopologyError) as caught:
        compare_file(path)
    assert caught.value.key == "fitted_on"
    assert caught.value.allowed.startswith(load(path).fingerprint)
