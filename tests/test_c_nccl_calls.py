"""Single calls of the NCCL plugin: what is refused and how, the profiler, attempts that expire."""

from __future__ import annotations

import os
import subprocess

import pytest
from c_programs import build, library
from test_c_nccl_order import SOURCES


@pytest.mark.parametrize("progress", ["threads", "inline"])
def test_calls(tmp_path, progress):
    program = build(tmp_path / "test", ["tests/c/test_nccl_calls.c", *SOURCES, str(library())])
    settings = {"HARP_PORT": "mem", "HARP_PROGRESS": progress, "HARP_TIMEOUT": "1",
                "HARP_CONF_FILE": "/dev/null"}
    done = subprocess.run([program], env={**os.environ, **settings}, capture_output=True, text=True,
                          check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
