"""torchft's Manager and its own tests of process groups, over ProcessGroupLightCC."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support import ROOT
from tests.support.levels import long

pytest.importorskip("torchft")

PATIENCE_S = 300
FAR = 100_000
LIGHTHOUSE = """
import sys
from torchft.coordination import LighthouseServer
server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=100)
print(server.address().replace(server.address().split("//")[1].split(":")[0], "127.0.0.1"),
      flush=True)
sys.stdin.read()
"""


def start(*words, **options):
    return subprocess.Popen([sys.executable, "-W", "ignore", *words], text=True, cwd=ROOT,
                            stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
                            **options)


@long
def test_torchfts_own_tests_of_process_groups_pass():
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.harp.lightcc.torch.torchft_tests"],
        text=True, capture_output=True, check=False, timeout=PATIENCE_S, cwd=ROOT)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "Ran 6 tests" in run.stderr


def read_until(replica, losses, wanted):
    """Note losses by step until a line is as wanted; give its step."""
    for line in iter(replica.stdout.readline, ""):
        step, replicas, loss = line.split()
        losses[int(step)] = loss
        if wanted(int(step), int(replicas)):
            return int(step)
    raise AssertionError("the replica ended")


@long
def test_a_replica_that_is_killed_comes_again_while_the_other_trains():
    lighthouse = start("-c", LIGHTHOUSE, stdin=subprocess.PIPE)
    address = lighthouse.stdout.readline().strip()

    def replica(number):
        return start("-m", "tests.harp.lightcc.torch.torchft_replica", str(number), address,
                     str(FAR))
    started = [replica(0), replica(1)]
    try:
        stays, losses, seen = started[0], {}, {}
        read_until(stays, losses, lambda _, replicas: replicas == 2)
        started[1].kill()
        read_until(stays, losses, lambda _, replicas: replicas == 1)
        started.append(replica(2))
        both = read_until(stays, losses, lambda _, replicas: replicas == 2)
        last = read_until(stays, losses, lambda step, _: step >= both + 10)
        read_until(started[2], seen, lambda step, _: step >= last)
        common = sorted(set(losses) & set(seen))
        assert len(common) >= 10
        assert {step: losses[step] for step in common} == {step: seen[step] for step in common}
    finally:
        for process in (*started, lighthouse):
            process.kill()
            process.communicate()
