"""Default number of engines for a device of the NCCL plugin, by host."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from lab.c_programs import build
from tests.cnet.nccl.asked_plugin import ask
from tests.support import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

CPUS = sorted(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("engines") / "test",
                 ["tests/cnet/nccl/test_engines_auto.c", "cnet/nccl/engines_auto.c",
                  "cnet/base/cgroup.c", "cnet/base/node_cpus.c"])


def test_the_policy(program: Path) -> None:
    subprocess.run([program], check=True, timeout=PATIENCE_S)


def cores(program: Path, *before: str, **environment: str) -> tuple[int, ...]:
    said = subprocess.run([*before, program, "here"], env={**os.environ, **environment}, check=True,
                          capture_output=True, text=True, timeout=PATIENCE_S).stdout
    return tuple(int(word) for word in said.split())


def test_ranks_are_read_from_the_launcher(program: Path) -> None:
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"):
        assert cores(program, **{name: "4"})[1] == 4
    assert cores(program, LOCAL_WORLD_SIZE="no number")[1] == 1


@pytest.mark.skipif(len(CPUS) < 2, reason="one CPU cannot be divided")
def test_a_rank_that_is_bound_has_its_cpus_for_itself(program: Path) -> None:
    cpus, ranks, bound, own = cores(program, "taskset", "-c", str(CPUS[0]), LOCAL_WORLD_SIZE="2")
    assert (cpus, ranks, own) == (1, 2, 1)
    assert bound


LO = {"HARP_PORT": "udp", "HARP_IFNAME": "=lo"}
ONE_CPU = ("taskset", "-c", str(CPUS[0]))


def said_of_engine(found: dict[str, Any]) -> str:
    """The line that says who drives the engines, and why."""
    return next(text for _, text in found["said"] if re.match(r"lo: engines (with|driven) ", text))


def line(**settings: str) -> str:
    """The line that says how many engines there are, and why."""
    found = ask("listen", **LO, HARP_PROGRESS="threads", **settings)
    return next(text for _, text in found["said"] if re.match(r"lo: engines \d+: ", text))


@pytest.mark.long
def test_nccls_thread_drives_where_no_cpu_is_free_for_another() -> None:
    line = said_of_engine(ask("listen", before=ONE_CPU, **LO))
    assert "engines driven inline: no CPU is free for a thread (1 of this rank, 2 for NCCL" in line
    line = said_of_engine(ask("listen", before=ONE_CPU, **LO, HARP_CPUS=str(CPUS[0])))
    assert "engines with a thread of their own: a CPU is free for it (1 in HARP_CPUS" in line


def test_a_thread_without_a_free_cpu_is_a_warning() -> None:
    found = ask("listen", before=ONE_CPU, **LO, HARP_PROGRESS="threads")
    warning, = (text for level, text in found["said"] if level == "warn")
    assert "HARP_PROGRESS=threads, but no CPU is free" in warning
    assert "engines with a thread of their own: HARP_PROGRESS" in said_of_engine(found)
    quiet = ask("listen", before=ONE_CPU, **LO, HARP_PROGRESS="inline")
    assert not [text for level, text in quiet["said"] if level == "warn"]


def test_a_speed_that_the_driver_does_not_report_can_be_set() -> None:
    cpus = ",".join([str(CPUS[0])] * 4)
    assert "engines 4: for 100000 Mb/s" in line(HARP_SPEED="100000", HARP_CPUS=cpus)
    assert "engines 2: HARP_ENGINES" in line(HARP_SPEED="100000", HARP_ENGINES="2")
    assert "engines 1: the driver reports no speed" in line(HARP_ENGINES="auto")


def test_nccl_learns_the_speed() -> None:
    device = ask(HARP_PORT="udp", HARP_IFNAME="=lo", HARP_SPEED="40000")["devices"][0]
    assert device["speed"] == 40000
    assert ask(HARP_PORT="udp", HARP_IFNAME="=lo")["devices"][0]["speed"] == 10000
