"""Single calls of the NCCL plugin: what is refused and how, the profiler, attempts that expire."""

from __future__ import annotations

import os
import subprocess

import pytest
from c_programs import SANITIZED, build, library
from test_c_nccl_order import SOURCES


def run(folder, flags, *arguments, **settings):
    program = build(folder / "test", ["tests/c/test_nccl_calls.c", *SOURCES, str(library(flags))],
                    flags)
    settings = {"HARP_PORT": "mem", "HARP_CONF_FILE": "/dev/null", **settings}
    done = subprocess.run([program, *arguments], env={**os.environ, **settings}, check=False,
                          capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("progress", ["threads", "inline"])
def test_calls(tmp_path, progress):
    run(tmp_path, SANITIZED, HARP_PROGRESS=progress, HARP_TIMEOUT="1")


@pytest.mark.parametrize("progress", ["threads", "inline"])
def test_calls_race_with_no_engine(tmp_path, progress):
    # TSan does not see the fence before a sleeper is looked for, and so cannot mind its absence.
    flags = ["-O1", "-fsanitize=thread", "-Wno-tsan"]
    run(tmp_path, flags, "at-once", HARP_PROGRESS=progress, HARP_TIMEOUT="20")


OVER_TCP = {"HARP_PORT": "tcp", "HARP_IFNAME": "=lo"}


def test_calls_over_tcp(tmp_path):
    run(tmp_path, SANITIZED, HARP_TIMEOUT="1", **OVER_TCP)


def test_calls_over_tcp_race_with_nothing(tmp_path):
    run(tmp_path, ["-O1", "-fsanitize=thread", "-Wno-tsan"], "at-once", HARP_TIMEOUT="20",
        **OVER_TCP)


def test_attempts_are_bounded(tmp_path):
    run(tmp_path, ["-O2"], "many", HARP_TIMEOUT="60")
