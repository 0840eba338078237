"""Congestion control against a virtual bottleneck (tests/c/bottleneck.h)."""

from __future__ import annotations

import re

import pytest
from c_programs import SANITIZED, build, run
from dst_programs import session_sources

BOTTLENECK = ["tests/c/bottleneck.c", "tests/c/cross.c", "cnet/virtual/event_heap.c",
              *(f"cnet/virtual/tcp_{name}.c" for name in ("bbr", "cc", "cubic", "dctcp")),
              "cnet/virtual/session_ends.c", *session_sources()]


@pytest.fixture(scope="module")
def bottleneck(tmp_path_factory):
    return build(tmp_path_factory.mktemp("bottleneck") / "bottleneck",
                 ["tests/c/test_bottleneck.c", *BOTTLENECK],
                 [*SANITIZED, "-O2", "-Wl,--no-as-needed", "-lm"])


SCENES = ["use", "late", "rtts", "deep", "shallow", "loss", "policer", "marks", "tiny", "noisy",
          "stalls", "slow", "turns", "both", "longer", "odd", "incast", "cubic", "bbr", "pausing",
          "left"]
FAILED_ONCE = [("longer", 7), ("late", 4)]


@pytest.mark.parametrize(("scenes", "seed"), [*((scenes, seed) for seed in (3, 6)
                                                for scenes in SCENES), *FAILED_ONCE])
def test_a_bottleneck_is_used_shared_and_not_flooded(bottleneck, scenes, seed):
    run(bottleneck, scenes, str(seed))


@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    return build(tmp_path_factory.mktemp("beside") / "beside",
                 ["tests/c/bottleneck_beside.c", *BOTTLENECK], ["-O2", "-Wl,--no-as-needed", "-lm"])


@pytest.mark.parametrize("settings", ["mbps=1000 rtt_us=100 bdp=80 kind=cubic flows=1,4",
                                      "mbps=1000 rtt_us=100 bdp=80 kind=bbr flows=1,4",
                                      "mbps=10000 rtt_us=100 bdp=16 kind=cubic flows=1,4",
                                      "mbps=10000 rtt_us=100 bdp=16 kind=bbr flows=1,4",
                                      "mbps=1000 rtt_us=50 bdp=4 kind=cubic flows=4"])
@pytest.mark.parametrize("late", [0, 1])
def test_tcp_with_segmentation_offload_leaves_us_a_share(beside, settings, late):
    """Also where TCP was there first: what is left of its queue then looks like the empty path.

    Four flows of BBR leave less, as those of the kernel do.
    """
    out = run(beside, *settings.split(), f"late={late}", "seeds=1")
    rows = re.findall(r"bdp +(\d+) +(\w+) .* least (\S+)", out)
    assert rows
    for flows, kind, share in rows:
        assert float(share) >= (0.1 if (flows, kind) == ("4", "bbr") else 0.35), (flows, kind)
