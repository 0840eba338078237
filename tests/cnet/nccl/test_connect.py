"""Attempts to connect, many at once: no engine races with them, and they are bounded."""

from __future__ import annotations

import pytest

from lab.c_programs import PLAIN, RACES
from tests.cnet.nccl.test_calls import OVER_TCP
from tests.support.levels import long


@long
@pytest.mark.parametrize("progress", ["threads", "inline"])
def test_calls_race_with_no_engine(run_calls, progress):
    # TSan does not see the fence before a sleeper is looked for, and so cannot mind its absence.
    run_calls(RACES, "at-once", HARP_PROGRESS=progress, HARP_TIMEOUT="60")


@long
@pytest.mark.parametrize("progress", ["threads", "inline"])
def test_calls_over_tcp_race_with_no_engine(run_calls, progress):
    run_calls(RACES, "at-once", HARP_PROGRESS=progress, HARP_TIMEOUT="60", **OVER_TCP)


@long
def test_attempts_are_bounded(run_calls):
    """None is given up before the last has begun, however slow the machine is."""
    run_calls(PLAIN, "many", HARP_TIMEOUT="600")
