"""Ranks of an elastic job that die, or come, before there is a group."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support import PATIENCE_S

START = """
import os, sys
from harp.lightcc.horovod import rejoin, world
rejoin.start()
print(world.current().rank, world.current().size, flush=True)
world.end()
"""
DIES = {
    "by itself": "os._exit(7)",
    "by a setting that is wrong": "os.environ['HOROVOD_CYCLE_TIME'] = 'late'",
    "when members are known": "world.restart = lambda *_: os._exit(7)",
}
"""What rank 1 of three does in place of joining, or before it does."""


def start_elastic(script, *options, **more):
    return subprocess.run(
        [sys.executable, "-m", "harp.cli.main", "run", *options, sys.executable, "-W", "ignore",
         "-c", script], text=True, capture_output=True, check=False, timeout=PATIENCE_S, **more)


@pytest.mark.parametrize("when", DIES)
def test_a_rank_that_dies_before_it_joins_leaves_a_smaller_world(when):
    script = START.replace("rejoin.start()", f"""
if os.environ["RANK"] == "1": {DIES[when]}
rejoin.start()""")
    done = start_elastic(script, "--min-np", "2", "-np", "3")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 0 2", "[2] 1 2"]
    assert "rank 1 on localhost ended with status" in done.stderr


def test_a_rank_that_lives_and_does_not_come_is_named(monkeypatch):
    monkeypatch.setenv("HOROVOD_START_TIMEOUT", "2")
    script = START.replace("rejoin.start()", """
import signal
if os.environ["RANK"] == "1": signal.pause()
rejoin.start()""")
    done = start_elastic(script, "--min-np", "2", "-np", "2")
    assert done.returncode != 0
    assert "rank 1 did not come to a new group within 2 s (HOROVOD_START_TIMEOUT)" in done.stderr


def test_a_job_of_one_rank_grows(tmp_path):
    hosts, script = tmp_path / "hosts", tmp_path / "find"
    hosts.write_text("localhost:1\n")
    script.write_text(f"#!/bin/sh\ncat {hosts}\n")
    script.chmod(0o755)
    done = start_elastic(START.replace("world.end()", f"""
open({str(hosts)!r}, "w").write("localhost:2")
while world.current().size < 2:
    if rejoin.hosts_have_changed():
        rejoin.meet_again()
print("grown to", world.current().size, flush=True)
world.end()"""), "--min-np", "1", "--host-discovery-script", str(script))
    assert done.returncode == 0, done.stderr
    assert [line for line in sorted(done.stdout.splitlines()) if "grown" in line] == [
        "[0] grown to 2", "[1] grown to 2"]
