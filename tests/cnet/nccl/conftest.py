"""The program of single calls, for the tests of what it calls."""

from __future__ import annotations

import os
import subprocess

import pytest

from lab.c_programs import build
from tests.cnet.nccl.test_transfer import with_plugin


@pytest.fixture(scope="module")
def run_calls(tmp_path_factory):
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
