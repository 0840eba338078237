"""Runs of ``harp perf`` for its tests."""

import json
import subprocess
import sys

PERF = [sys.executable, "-m", "harp.cli.main", "perf"]
QUICK = ["--seconds", "0.01", "--sizes", "8:64KiB:8192"]


def run(*arguments):
    return subprocess.run([*PERF, *arguments], capture_output=True, text=True, check=False,
                          timeout=120)


def rows(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["rows"]
