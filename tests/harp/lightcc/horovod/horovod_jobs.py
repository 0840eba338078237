"""Jobs of horovod_rank.py, started by harp run or forked."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.support import ROOT
from tests.support.torch_ranks import PATIENCE_S

PROGRAM = ("-m", "tests.harp.lightcc.horovod.horovod_rank")
"""By its name: the folder torch would hide torch from a program that is started by its path."""


def run(ranks, *command, options=(), **variables):
    return subprocess.run(
        [sys.executable, "-m", "harp.cli.main", "run", "-np", str(ranks), *options,
         sys.executable, "-W", "ignore", *PROGRAM, *map(str, command)], text=True, cwd=ROOT,
        capture_output=True, check=False, timeout=PATIENCE_S, env={**os.environ, **variables})


def answers(ended):
    """The last line of each rank."""
    assert ended.returncode == 0, ended.stderr
    found = {}
    for line in ended.stdout.splitlines():
        rank, _, text = line.partition("] ")
        found[int(rank[1:])] = text
    return [json.loads(found[rank]) for rank in sorted(found)]
