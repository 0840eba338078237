"""The event wheel of the packet network gives what a heap alone gives."""

from __future__ import annotations

from lab.c_programs import SANITIZED, build, run
from tests.support import ROOT


def test_events_come_in_order(tmp_path):
    flags = [*SANITIZED, f"-I{ROOT / 'sim/network/packet'}"]
    run(build(tmp_path / "wheel", ["tests/sim/network/packet/test_event_wheel.c",
                                   "sim/network/packet/event_wheel.c",
                                   "cnet/virtual/event_heap.c"], flags))
