"""A connection and kernel TCP through one router, between real namespaces.

What the connection gets is a matter of virtual time (test_swift_bottleneck.py) and of a bench at
rest (python -m bench stack): here the machine's mood decides it.
"""

import os

import pytest

from bench import arms
from bench.stack.stack_rows import beside_tcp
from lab.c_programs import PLAIN


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.parametrize("control", ["cubic", "bbr"])
def test_messages_arrive_while_tcp_flows_hold_the_queue(monkeypatch, tmp_path, control):
    monkeypatch.setattr(arms, "RELEASE", PLAIN)  # the archive of other tests will do
    monkeypatch.setattr(arms, "BUILT", tmp_path)
    with beside_tcp(control, 4, "--size", "65536")(arms.Bench(seconds=1)) as made:
        assert made["HARP"]().value > 0
