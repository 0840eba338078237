"""Congestion control against a virtual bottleneck (tests/cnet/cc/bottleneck.h)."""

from __future__ import annotations

import re

import pytest

from lab.c_programs import PLAIN, SANITIZED, build, library, run
from tests.support.levels import long
from tests.support.planted_bugs import REVERSE_IGNORED, plant

BOTTLENECK = ["tests/cnet/cc/bottleneck.c", "tests/cnet/cc/bottleneck_queue.c",
              "tests/cnet/cc/cross.c"]
TESTS = ["tests/cnet/cc/test_swift_bottleneck.c", "tests/cnet/cc/bottleneck_ways.c", *BOTTLENECK]
MATHS = ["-Wl,--no-as-needed", "-lm"]


@pytest.fixture(scope="module")
def bottleneck(tmp_path_factory, request):
    """One seed shows a memory error as well as two do; figures need no sanitizers."""
    flags = {"sanitized": SANITIZED, "plain": PLAIN}[request.param]
    return build(tmp_path_factory.mktemp("bottleneck") / "bottleneck",
                 [*TESTS, str(library(flags))], [*flags, *MATHS])


SCENES = ["use", "late", "rtts", "deep", "shallow", "loss", "policer", "capped", "marks", "tiny",
          "noisy", "stalls", "slow", "turns", "crowded", "both", "shapers", "busy", "robbed",
          "clocks", "back", "differ", "longer", "odd", "incast", "cubic", "bbr", "pausing", "left"]
SANITIZED_QUICKLY = ("use",)
SANITIZED_LONG = ("deep", "rtts", "shallow", "policer", "marks", "stalls", "crowded", "shapers",
                  "clocks", "incast", "bbr", "pausing", "left")
FAILED_ONCE = [("longer", 7), ("late", 4), ("tiny", 7), ("bbr", 4)]
SLOW = ("longer", "shapers", "clocks", "crowded", "odd", "pausing")
PLAIN_LONG = (*SLOW, "late", "tiny", "use", "back", "bbr", "cubic", "capped", "robbed", "rtts",
              "busy", "differ", "turns", "left", "both", "noisy")


@pytest.mark.parametrize(("bottleneck", "scenes", "seed"), [
    *(pytest.param("sanitized", scenes, 3, marks=() if scenes in SANITIZED_QUICKLY else long)
      for scenes in (*SANITIZED_QUICKLY, *SANITIZED_LONG)),
    *(pytest.param("plain", scenes, 6, marks=long if scenes in PLAIN_LONG else ())
      for scenes in SCENES),
    *(pytest.param("plain", scenes, seed, marks=long)
      for scenes, seed in FAILED_ONCE)], indirect=["bottleneck"])
def test_a_bottleneck_is_used_shared_and_not_flooded(bottleneck, scenes, seed):
    run(bottleneck, scenes, str(seed))


@long
def test_directions_that_differ_need_the_queue_of_each(tmp_path):
    root = plant(REVERSE_IGNORED, tmp_path / "planted")
    program = build(tmp_path / "bottleneck",
                    [*TESTS, "cnet/session/session_ack.c", str(library(PLAIN))],
                    [*PLAIN, *MATHS], root)
    with pytest.raises(AssertionError, match="NOT MET"):
        run(program, "differ", "3")


@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    return build(tmp_path_factory.mktemp("beside") / "beside",
                 ["tests/cnet/cc/bottleneck_beside.c", *BOTTLENECK, str(library(PLAIN))],
                 [*PLAIN, *MATHS])


@long
@pytest.mark.parametrize("settings", [
    "mbps=1000 rtt_us=100 bdp=80 kind=cubic flows=1,4",
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
