"""Every collective, type, size, number of ranks and plan against numpy.

    python -m tests.harp.lightcc.test_group_matrix [RANKS ...]

runs all of it, with 64 MiB at each of 1 to 8 ranks.

The suite runs what takes seconds.
"""

from __future__ import annotations

import os
import sys
import time
import zlib

import numpy as np
import pytest

from harp.lightcc.elements import TYPES
from harp.lightcc.policy import PlanPath
from harp.lightcc.settings import LightSettings
from tests.harp.lightcc.checks import (
    COPYING,
    REDUCING,
    begin_allreduce,
    check_equal,
    check_one,
    reductions_of,
)
from tests.harp.lightcc.soak import soak_for
from tests.harp.lightcc.test_group import group_of, of_all, raw
from tests.support.levels import each_once, long, long_except

SETTINGS = {
    "ring": {"LIGHT_SMALL_THRESHOLD": 0},
    "2d": {"LIGHT_2D_ALLREDUCE": 1, "LIGHT_INTRA_SIZE": 2},
    "recursive-doubling": {},
    "halving-doubling": {},
    "tree": {},
}
LARGE_BYTES = 64 << 20
LARGE_PATIENCE_S = 1800.0


def random_of(*case):
    return np.random.default_rng(zlib.crc32(repr(case).encode()))


def settings_of(plan, monkeypatch):
    if not SETTINGS[plan]:  # no setting asks for it at every size
        monkeypatch.setattr("harp.lightcc.group.allreduce_path",
                            lambda *_, **__: PlanPath(plan, {"group": 1}, "a test"))
    return LightSettings.from_env(SETTINGS[plan])


def check_all(group, plan, sizes):
    for elements in sizes:
        for dtype in TYPES:
            for reduction in reductions_of(dtype):
                random = random_of(plan, len(group), elements, dtype, reduction)
                check_one(begin_allreduce(group, random, elements, dtype, reduction))
    if plan == "ring":  # the others have one plan
        for elements in sizes:
            for begin in COPYING:
                check_one(begin(group, random_of(len(group), elements), elements))
            for dtype in TYPES:
                for reduction in reductions_of(dtype):
                    random = random_of(len(group), elements, dtype, reduction)
                    check_one(REDUCING[1](group, random, elements, dtype, reduction))


@pytest.mark.parametrize(("ranks", "plan"), each_once([1, 2, 3, 4, 8], SETTINGS))
def test_collectives_are_those_of_numpy(ranks, plan, monkeypatch):
    with group_of(ranks, settings=settings_of(plan, monkeypatch)) as group:
        check_all(group, plan, [0, 1, 1001])


@pytest.mark.parametrize("plan", long_except(SETTINGS, "ring", "2d"))
def test_sums_are_bit_equal_on_all_ranks_and_from_run_to_run(plan, monkeypatch):
    def run(dtype):
        random = np.random.default_rng(1)
        with group_of(4, settings=settings_of(plan, monkeypatch)) as group:
            data = [random.normal(size=100_003).astype(dtype) for _ in group]
            of_all(rank.allreduce(raw(own), dtype) for rank, own in zip(group, data, strict=True))
        assert len({own.tobytes() for own in data}) == 1
        return data[0].tobytes()
    for dtype in ("float16", "float32"):
        assert run(dtype) == run(dtype)


@long
def test_random_calls_on_a_bad_network_are_right(monkeypatch):
    monkeypatch.setenv("HARP_PORT", "auto")
    monkeypatch.setenv("HARP_FAULTS", "")
    done = soak_for(4, seed=1)
    assert done["checked"] > 50
    assert done["failed by abort"] + done["failed by disagree"] == done["groups"] > 0


def check_large(group, plan):
    """Every collective and type with 64 MiB at each rank."""
    ranks = len(group)
    for dtype in TYPES:
        elements = LARGE_BYTES // TYPES[dtype].itemsize
        random, reduction = random_of(plan, ranks, dtype), "max" if dtype == "bool" else "sum"
        check_one(begin_allreduce(group, random, elements, dtype, reduction))
        if plan == "ring":
            check_one(REDUCING[1](group, random, elements // ranks, dtype, reduction))
    if plan == "ring":
        broadcast, *of_parts = COPYING
        check_one(broadcast(group, random_of(ranks), LARGE_BYTES))
        for begin in of_parts:
            check_one(begin(group, random_of(ranks), LARGE_BYTES // ranks))


def check_runs(group, plan):
    """Sums that are rounded: bit-equal on all ranks and from run to run."""
    random = random_of(plan, len(group))
    given = [np.resize(random.normal(size=100_003), LARGE_BYTES // 4).astype("float32")
             for _ in group]
    sums = [[own.copy() for own in given] for _ in range(2)]
    for run in sums:
        of_all(rank.allreduce(raw(own), "float32") for rank, own in zip(group, run, strict=True))
    for own in (*sums[0], *sums[1]):
        check_equal(raw(own), raw(sums[0][0]))


def check_everything(numbers_of_ranks):
    for ranks in numbers_of_ranks:
        for plan in SETTINGS:
            began_s = time.monotonic()
            with pytest.MonkeyPatch.context() as patch, \
                    group_of(ranks, LARGE_PATIENCE_S, settings_of(plan, patch)) as group:
                patch.setattr("test_lightcc_group.PATIENCE_S", LARGE_PATIENCE_S)
                check_all(group, plan, [0, 1, 1001, 65_537])
                check_large(group, plan)
                check_runs(group, plan)
            print(f"{plan}, {ranks} ranks: right ({time.monotonic() - began_s:.0f} s)", flush=True)


if __name__ == "__main__":
    os.environ.pop("LIGHT_2D_ALLREDUCE", None)
    sys.exit(check_everything([int(word) for word in sys.argv[1:]] or range(1, 9)))
