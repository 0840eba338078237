"""Congestion control against a virtual bottleneck (tests/c/bottleneck.h)."""

from __future__ import annotations

import pytest
from c_programs import SANITIZED, build, run
from dst_programs import session_sources


@pytest.fixture(scope="module")
def bottleneck(tmp_path_factory):
    return build(tmp_path_factory.mktemp("bottleneck") / "bottleneck",
                 ["tests/c/test_bottleneck.c", "tests/c/bottleneck.c", "tests/c/cross.c",
                  *session_sources()],
                 [*SANITIZED, "-O2", "-Wl,--no-as-needed", "-lm"])


@pytest.mark.parametrize("scenes", ["use", "late", "rtts", "deep", "shallow", "loss", "policer",
                                    "marks", "tiny", "noisy", "stalls", "slow", "turns", "both",
                                    "longer", "odd", "incast", "cubic", "bbr", "left"])
def test_a_bottleneck_is_used_shared_and_not_flooded(bottleneck, scenes):
    run(bottleneck, scenes)
