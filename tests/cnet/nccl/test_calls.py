"""Single calls of the NCCL plugin: what is refused and how, the profiler, attempts that expire."""

from __future__ import annotations

import os
import subprocess

import pytest

from lab.c_programs import PLAIN, RACES, SANITIZED, build
from tests.cnet.nccl.test_transfer import with_plugin
from tests.support.levels import long, long_except


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs the program, which is built once by the same flags."""
    programs = {}

    def run_built(flags, *arguments, **settings):
        key = tuple(flags)
        if key not in programs:
            programs[key] = build(tmp_path_factory.mktemp("calls") / "test",
                                  with_plugin("test_calls.c", flags), flags)
        settings = {"HARP_PORT": "mem", "HARP_CONF_FILE": "/dev/null", **settings}
        done = subprocess.run([programs[key], *arguments], env={**os.environ, **settings},
                              check=False, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
    return run_built


@pytest.mark.parametrize("progress", long_except(["threads", "inline"], "inline"))
def test_calls(run, progress):
    run(SANITIZED, HARP_PROGRESS=progress, HARP_TIMEOUT="1")


@long
@pytest.mark.parametrize("progress", ["threads", "inline"])
def test_calls_race_with_no_engine(run, progress):
    # TSan does not see the fence before a sleeper is looked for, and so cannot mind its absence.
    run(RACES, "at-once", HARP_PROGRESS=progress, HARP_TIMEOUT="60")


OVER_TCP = {"HARP_PORT": "tcp", "HARP_IFNAME": "=lo"}


@pytest.mark.parametrize("progress", long_except(["threads", "inline"], "inline"))
def test_calls_over_tcp(run, progress):
    run(SANITIZED, HARP_PROGRESS=progress, HARP_TIMEOUT="1", **OVER_TCP)


@long
@pytest.mark.parametrize("progress", ["threads", "inline"])
def test_calls_over_tcp_race_with_no_engine(run, progress):
    run(RACES, "at-once", HARP_PROGRESS=progress, HARP_TIMEOUT="60", **OVER_TCP)


@long
def test_attempts_are_bounded(run):
    """None is given up before the last has begun, however slow the machine is."""
    run(PLAIN, "many", HARP_TIMEOUT="600")
