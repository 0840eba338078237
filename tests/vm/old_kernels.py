"""C tests on the kernels of older Debian releases, in the emulated machine: `make test-vm`.

Where a kernel lacks what a port needs, the port says so in a sentence, and the others work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab import vm
from lab.c_programs import build, library

if TYPE_CHECKING:
    from pathlib import Path

FLAGS = ["-O2", "-static"]
C_TESTS = ["base/test_arena", "base/test_frames", "base/test_sockaddr", "base/test_node_cpus",
           "engine/engine_pair", "engine/engine_small_buffer", "ports/test_port_mem",
           "session/test_session_far_buffer"]
PAIRS = [f"engine_pair {port} {progress} {kind} 1 60 150000"
         for port in ("udp", "mem") for progress in ("inline", "thread")
         for kind in ("posted", "drafts")]
PORTS = ["udp", "tcp", "xdp"]
BENCH = """
arm() { # bulk data from here to the peer namespace
    mkfifo ready
    peer harp_bench receive --port $1 --interface eth1 --seconds 0.3 >ready 2>errors & receiver=$!
    { read word handle
      harp_bench send --port $1 --interface eth0 --handle $handle 2>>errors & sender=$!
      cat; } <ready
    rm ready
    wait $sender && wait $receiver
}
ping -c 1 -w 10 10.0.0.2 >ping
"""
# With all that QEMU can emulate Linux 5.10 does not bring up its second CPU.
CPU = "Haswell,-erms,-pclmulqdq"


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, archive = tmp_path_factory.mktemp("programs"), str(library(FLAGS))
    made = []
    for name in C_TESTS:
        sources = [f"tests/cnet/{name}.c", archive]
        if name.startswith("session/"):
            sources.insert(1, "tests/cnet/session/session_pair.c")
        made.append(build(folder / name.split("/")[1], sources, FLAGS))
    made.append(build(folder / "harp_bench", ["bench/c/harp_bench.c",
                                              "bench/c/harp_bench_settings.c", archive],
                      [*FLAGS, "-Icnet"]))
    return made


@pytest.mark.parametrize("suite", ["bullseye", "bookworm"])
def test_the_c_tests_pass_on_an_older_kernel(suite: str, programs: list[Path]) -> None:
    commands = [name.split("/")[1] for name in C_TESTS if name != "engine/engine_pair"] + PAIRS
    tests = "\n".join(f"{command} >said 2>&1 || {{ echo 'FAILED {command}'; cat said; }}"
                      for command in commands)
    ports = "\n".join(f"arm {port} || {{ echo FAILED {port}; cat errors; }}" for port in PORTS)
    begin = "uname -r; mkdir -m 1777 /dev/shm; ulimit -l unlimited"
    done = vm.run("\n".join([begin, tests, BENCH, ports]), programs, suite=suite, cpu=CPU,
                  timeout_s=300)
    assert done.code == 0, done.output
    assert "FAILED" not in done.output, done.output
