"""Congestion control against a virtual bottleneck (tests/c/bottleneck.h)."""

from __future__ import annotations

import re

import pytest
from c_programs import SANITIZED, build, run
from dst_programs import cnet, driver_sources

BOTTLENECK = ["tests/c/bottleneck.c", "tests/c/cross.c", *cnet("virtual/*.c"), *driver_sources()]


@pytest.fixture(scope="module")
def bottleneck(tmp_path_factory):
    return build(tmp_path_factory.mktemp("bottleneck") / "bottleneck",
                 ["tests/c/test_bottleneck.c", *BOTTLENECK],
                 [*SANITIZED, "-O2", "-Wl,--no-as-needed", "-lm"])


@pytest.mark.parametrize("seed", [3, 6])
@pytest.mark.parametrize("scenes", ["use", "late", "rtts", "deep", "shallow", "loss", "policer",
                                    "marks", "tiny", "noisy", "stalls", "slow", "turns", "both",
                                    "longer", "odd", "incast", "cubic", "bbr", "left"])
def test_a_bottleneck_is_used_shared_and_not_flooded(bottleneck, scenes, seed):
    run(bottleneck, scenes, str(seed))


@pytest.mark.parametrize(("settings", "least"), [
    ("mbps=1000 rtt_us=100 bdp=16 flows=1 kind=cubic late=0,1", 0.35),
    ("mbps=1000 rtt_us=50 bdp=4 flows=4 kind=cubic late=0,1", 0.35),
    ("mbps=10000 rtt_us=100 bdp=16 flows=4 kind=cubic late=0,1", 0.35),
])
def test_tcp_with_segmentation_offload_leaves_us_a_share(tmp_path, settings, least):
    program = build(tmp_path / "beside",
                    ["tests/c/bottleneck_beside.c", *BOTTLENECK],
                    ["-O2", "-Wl,--no-as-needed", "-lm"])
    shares = re.findall(r"least (\S+)", run(program, *settings.split(), "seeds=1"))
    assert len(shares) == 2
    assert min(map(float, shares)) >= least
