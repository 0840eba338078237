"""Keys of prices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sim.answer.test_cost import PRICE
from tests.sim.report.test_cost_table import run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("prices", "says"), [
    ({"hosts": {"hosts-of-mine": 1.0}}, "'hosts-of-mine' is not a known host group"),
    ({"hosts": {"h": -1.0}}, "prices.hosts.h"),
    ({"hosts": {}}, "prices.hosts"),
    ({"hosts": {"h": 1.0}, "samples": 1, "tokens": 1}, "has both samples and tokens"),
    ({"hosts": {"h": 1.0}, "tokens": 1e9}, "a sample of 'vgg16' has no tokens"),
])
def test_wrong_prices_are_one_sentence(tmp_path: Path, prices: dict, says: str) -> None:
    done = run(tmp_path, prices)
    assert done.exit_code == 2
    assert says in done.output
    assert done.output.count("\n") == 1


def test_prices_of_hosts_are_keys_with_an_effect(tmp_path: Path) -> None:
    done = run(tmp_path, {"hosts": {"h": PRICE}})
    assert done.exit_code == 0
    assert "prices" not in done.stderr
