"""Congestion control against a virtual bottleneck (tests/c/bottleneck.h)."""

from __future__ import annotations

from c_programs import SANITIZED, build, run
from dst_programs import session_sources


def test_a_bottleneck_is_used_shared_and_not_flooded(tmp_path):
    program = build(tmp_path / "bottleneck",
                    ["tests/c/test_bottleneck.c", "tests/c/bottleneck.c", *session_sources()],
                    [*SANITIZED, "-O2"])
    run(program)
