"""A connection and kernel TCP through one router, between real namespaces.

What the connection gets is a matter of virtual time (tests/test_c_congestion.py) and of a bench at
rest (bench/stack.py): here the machine's mood decides it.
"""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))

from stack_arms import Bench
from stack_rows import beside_tcp


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.parametrize("control", ["cubic", "bbr"])
def test_messages_arrive_while_tcp_flows_hold_the_queue(control):
    with beside_tcp(control, 4, "--size", "65536")(Bench(seconds=1)) as arms:
        assert arms["HARP"]().value > 0
