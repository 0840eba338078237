"""A connection and kernel TCP through one router, between real namespaces.

What the connection gets is a matter of virtual time (test_congestion.py) and of a bench at rest
(bench/stack.py): here the machine's mood decides it.
"""

import os
import sys

import pytest

from tests.support import ROOT

sys.path.insert(0, str(ROOT / "bench"))

from stack_arms import Bench
from stack_rows import beside_tcp


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.parametrize("control", ["cubic", "bbr"])
def test_messages_arrive_while_tcp_flows_hold_the_queue(control):
    with beside_tcp(control, 4, "--size", "65536")(Bench(seconds=1)) as arms:
        assert arms["HARP"]().value > 0
