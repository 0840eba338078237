"""The heap of times in the fluid engine."""

from __future__ import annotations

from lab.c_programs import SANITIZED, build, run
from tests.support import ROOT


def test_the_heap_against_a_plain_array(tmp_path):
    flags = [*SANITIZED, f"-I{ROOT / 'sim/network/flow'}"]
    run(build(tmp_path / "heap", ["tests/sim/network/flow/test_time_heap.c",
                                  "sim/network/flow/time_heap.c"], flags))
