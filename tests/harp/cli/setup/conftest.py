"""Fixtures that tests of ``harp setup`` share."""

from __future__ import annotations

import pytest

from tests.harp.cli.setup.fake_host import FakeHost


@pytest.fixture
def host(tmp_path):
    """Two nodes, eight cards, and the one that everybody comes in by."""
    made = FakeHost(tmp_path, {0: "0-7", 1: "8-15"}, gpus=32)
    made.card("eth0", driver="ena")
    for number in range(1, 9):
        made.card(f"eth{number}", driver="mlx5_core", most=64, xdp="zero copy",
                  node=(number - 1) // 4)
    return made
