"""HARP's NCCL plugin seen from outside: engines, faults, forks, limits.

Whether it moves data as NCCL expects is tried by the client of lab/nccl_client.
"""

from __future__ import annotations

import os

import pytest

from tests.cnet.nccl.asked_plugin import INVALID_USAGE, ask, warnings

"""What NCCL_PARAM and ncclGetEnv name of sockets and networks in src/ of NCCL 2.30.7."""


@pytest.mark.parametrize("progress", ["threads", "inline"])
def test_engines_run_on_the_cpus_that_are_set(progress):
    cpus = sorted(os.sched_getaffinity(0))
    found = ask("listen", HARP_PORT="udp", HARP_IFNAME="=lo", HARP_ENGINES="3",
                HARP_PROGRESS=progress, HARP_CPUS=f"{cpus[-1]},{cpus[0]}")
    assert found["threads"] == [[cpus[-1]], [cpus[0]], [cpus[-1]]]


def test_faults_that_are_asked_for_are_there():
    found = ask("listen", HARP_PORT="udp", HARP_IFNAME="=lo", HARP_FAULTS="drop=1%,seed=7")
    assert any(": chaos of seed 7 over udp: lo " in text for _, text in found["said"])


def test_a_child_of_fork_gets_an_error():
    found = ask("listen", "fork", HARP_PORT="udp", HARP_IFNAME="=lo")
    assert found["forked"] == INVALID_USAGE
    assert found["finalize"] == 0


@pytest.mark.parametrize(("hard", "warned"), [(4096, True), (20000, False)])
def test_the_limit_of_descriptors_is_raised_to_the_hard_one(hard: int, warned: bool) -> None:
    found = ask(before=("prlimit", f"--nofile=256:{hard}"), HARP_PORT="mem")
    assert found["descriptors"] == hard
    assert any("may open 4096 files at most, enough for 128 peers" in text
               for text in warnings(found)) == warned
