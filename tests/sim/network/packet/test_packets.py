"""The pool of packets and rows of them."""

from __future__ import annotations

from lab.c_programs import SANITIZED, build, run
from tests.support import ROOT


def test_packets_are_taken_given_back_and_kept_in_rows(tmp_path):
    flags = [*SANITIZED, f"-I{ROOT / 'sim/network/packet'}"]
    run(build(tmp_path / "packets", ["tests/sim/network/packet/test_packets.c",
                                     "sim/network/packet/packets.c",
                                     "sim/network/packet/event_wheel.c",
                                     "cnet/virtual/event_heap.c"], flags))
