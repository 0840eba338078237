"""Single calls of the NCCL plugin: what is refused and how, the profiler, attempts that expire."""

from __future__ import annotations

import pytest

from lab.c_programs import SANITIZED
from tests.support.levels import long_except

OVER_TCP = {"HARP_PORT": "tcp", "HARP_IFNAME": "=lo"}


@pytest.mark.parametrize("progress", long_except(["threads", "inline"], "inline"))
def test_calls(run_calls, progress):
    run_calls(SANITIZED, HARP_PROGRESS=progress, HARP_TIMEOUT="1")


@pytest.mark.parametrize("progress", long_except(["threads", "inline"], "inline"))
def test_calls_over_tcp(run_calls, progress):
    run_calls(SANITIZED, HARP_PROGRESS=progress, HARP_TIMEOUT="1", **OVER_TCP)
