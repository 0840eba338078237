"""A connection and kernel TCP through one router, between real namespaces."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))

from stack_arms import Bench
from stack_rows import beside_tcp


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.parametrize("control", ["cubic", "bbr"])
@pytest.mark.parametrize("flows", [1, 4])
def test_a_connection_is_not_starved_beside_tcp_flows(control, flows):
    """The share itself is a row of bench/stack.py: a busy machine changes it by a factor of two."""
    with beside_tcp(control, flows)(Bench(seconds=2)) as arms:
        assert arms["HARP"]().value >= 0.05 * arms["fair share"]().value
