"""A connection and kernel TCP through one router, between real namespaces."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))

from stack_arms import Bench
from stack_rows import beside_cubic


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_connection_holds_a_share_beside_four_cubic_flows():
    with beside_cubic(4)(Bench(seconds=4)) as arms:
        assert arms["HARP"]().value >= 0.35 * arms["fair share"]().value
