"""The NCCL plugin's messages where the sending end is ahead of the receiving one, or has closed.

And that it takes no memory and no lock while messages flow.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from lab.c_programs import PLAIN, SANITIZED, build, library, plugin_library
from tests.support.levels import each_once


def with_plugin(source, flags=SANITIZED):
    """The sources of a program that has the plugin in it."""
    return [f"tests/cnet/nccl/{source}", str(plugin_library(flags)), str(library(flags))]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build(tmp_path_factory.mktemp("transfer") / "test",
                 with_plugin("test_transfer.c"))


def run(program, port, progress, faults="", **more):
    settings = {"HARP_PORT": port, "HARP_PROGRESS": progress, "HARP_FAULTS": faults,
                "HARP_IFNAME": "=lo", "HARP_CONF_FILE": "/dev/null", **more}
    done = subprocess.run([program], env={**os.environ, **settings}, capture_output=True, text=True,
                          check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("port", "progress", "faults"), each_once(
    ["udp", "mem"], ["threads", "inline"],
    ["drop=2%,reorder=2%,duplicate=1%,delay=100us,seed=11", ""]))
def test_sends_that_are_ahead_find_their_buffers(program, port, progress, faults):
    run(program, port, progress, faults)


def test_sends_that_are_ahead_find_their_buffers_over_tcp(program):
    for sockets in ("1", "4"):
        run(program, "tcp", "inline", HARP_SOCKETS=sockets)


@pytest.mark.parametrize(("port", "progress"), each_once(
    ["udp", "tcp", "mem"], ["threads", "inline"]))
def test_data_path_asks_for_no_memory_and_no_lock(tmp_path, port, progress):
    wrapped = ["malloc", "calloc", "realloc", "aligned_alloc", "free", "mmap", "munmap",
               "pthread_mutex_lock", "getrandom"]
    flags = [*PLAIN, *(f"-Wl,--wrap={name}" for name in wrapped)]
    run(build(tmp_path / "quiet", with_plugin("test_quiet.c", PLAIN), flags), port, progress)
