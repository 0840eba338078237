"""CPUs of the host that control groups of both versions leave to a process."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from lab.c_programs import build
from lab.control_groups import control_group
from tests.support import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

NO_QUOTA, NO_LIMIT = 2**32 - 1, 2**64 - 1


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("cgroup") / "test",
                 ["tests/cnet/base/test_cgroup.c", "cnet/base/cgroup.c", "cnet/base/node_cpus.c"])


def limits(program: Path, groups: Path | str, mounts: Path | str,
           before: list[str] | None = None) -> tuple[int, int]:
    said = subprocess.run([*(before or []), program, groups, mounts], check=True, text=True,
                          capture_output=True, timeout=PATIENCE_S).stdout.split()
    return int(said[0]), int(said[1])


def memory(program: Path, groups: Path | str, mounts: Path | str,
           before: list[str] | None = None) -> int:
    return int(subprocess.run([*(before or []), program, groups, mounts], check=True, text=True,
                              capture_output=True, timeout=PATIENCE_S).stdout.split()[2])


def test_lists(program: Path) -> None:
    subprocess.run([program], check=True, timeout=PATIENCE_S)


def mounted(root: str, at: Path, kind: str, options: str) -> str:
    return f"36 35 0:30 {root} {at} rw,nosuid shared:9 - {kind} cgroup rw,{options}\n"


PLACES = {
    # the process's group, what is mounted, files of groups; CPUs of the quota and of the set
    "version 2": ("0::/a/b\n", [("/", "cgroup2", "nsdelegate")], {
        "0/a/b/cpu.max": "max 100000\n", "0/a/cpu.max": "150000 100000\n",
        "0/a/b/cpuset.cpus.effective": "0-2\n"}, (2, 3)),
    "version 2, as a container sees it": ("0::/\n", [("/kubepods/pod1", "cgroup2", "")], {
        "0/cpu.max": "400000 100000\n", "0/cpuset.cpus.effective": "0-95\n"}, (4, 96)),
    "version 1": ("4:cpu,cpuacct:/a\n3:cpuset:/b\n", [("/", "cgroup", "cpu,cpuacct"),
                                                     ("/", "cgroup", "cpuset")], {
        "0/a/cpu.cfs_quota_us": "250000\n", "0/a/cpu.cfs_period_us": "100000\n",
        "0/cpu.cfs_quota_us": "-1\n", "0/cpu.cfs_period_us": "100000\n",
        "1/b/cpuset.effective_cpus": "4,6\n"}, (3, 2)),
    # No namespace of control groups: the process sees the host's path, the mount is its own group.
    "version 1, as a container sees it": (
        "4:cpu,cpuacct:/kubepods/pod1/c\n", [("/kubepods/pod1/c", "cgroup", "cpu,cpuacct")], {
            "0/cpu.cfs_quota_us": "50000\n", "0/cpu.cfs_period_us": "100000\n"}, (1, 0)),
    "hybrid": ("1:cpu:/job\n0::/job\n", [("/", "cgroup2", ""), ("/", "cgroup", "cpu")], {
        "1/job/cpu.cfs_quota_us": "100000\n", "1/job/cpu.cfs_period_us": "100000\n"}, (1, 0)),
    "a group that only begins alike": ("0::/pod10\n", [("/pod1", "cgroup2", "")], {
        "0/cpu.max": "700000 100000\n", "00/cpu.max": "100000 100000\n"}, (7, 0)),
    "nothing mounted": ("0::/a\n", [], {}, (NO_QUOTA, 0)),
    "no quota": ("0::/a\n", [("/", "cgroup2", "")], {"0/a/cpu.max": "max 100000\n"}, (NO_QUOTA, 0)),
    "no number": ("0::/a\n", [("/", "cgroup2", "")], {"0/a/cpu.max": "\n"}, (NO_QUOTA, 0)),
}


MEMORY = {
    "the least of the groups that enclose it": ("0::/a/b\n", [("/", "cgroup2", "")], {
        "0/a/b/memory.max": "max\n", "0/a/b/memory.current": "100\n",
        "0/a/memory.max": "1000\n", "0/a/memory.current": "700\n"}, 300),
    "a file's cache is given up": ("0::/a\n", [("/", "cgroup2", "")], {
        "0/a/memory.max": "1000\n", "0/a/memory.current": "900\n",
        "0/a/memory.stat": "anon 100\ninactive_file 750\ninactive_file_x 9\n"}, 850),
    "version 1": ("4:memory:/a\n", [("/", "cgroup", "memory")], {
        "0/a/memory.limit_in_bytes": "5000\n", "0/a/memory.usage_in_bytes": "4000\n",
        "0/a/memory.stat": "inactive_file 1\ntotal_inactive_file 500\n",
        "0/memory.limit_in_bytes": "9223372036854771712\n",
        "0/memory.usage_in_bytes": "8000\n"}, 1500),
    "more than the limit": ("0::/a\n", [("/", "cgroup2", "")], {
        "0/a/memory.max": "1000\n", "0/a/memory.current": "1200\n"}, 0),
    "no limit": ("0::/a\n", [("/", "cgroup2", "")], {"0/a/memory.max": "max\n"}, NO_LIMIT),
    "nothing mounted": ("0::/a\n", [], {}, NO_LIMIT),
}


def lay_out(folder: Path, groups: str, mounts: list[tuple[str, str, str]],
            files: dict[str, str]) -> tuple[Path, Path]:
    (folder / "groups").write_text("9:name=systemd:/other\n" + groups)
    (folder / "mounts").write_text("22 1 254:0 / / rw - ext4 /dev/vda rw\n" + "".join(
        mounted(root, folder / str(at), kind, options)
        for at, (root, kind, options) in enumerate(mounts)))
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "groups", folder / "mounts"


@pytest.mark.parametrize("place", PLACES)
def test_limits_are_found_where_they_are_mounted(program: Path, tmp_path: Path, place: str) -> None:
    *laid, wanted = PLACES[place]
    assert limits(program, *lay_out(tmp_path, *laid)) == wanted


@pytest.mark.parametrize("place", MEMORY)
def test_memory_that_is_left_is_found(program: Path, tmp_path: Path, place: str) -> None:
    *laid, wanted = MEMORY[place]
    assert memory(program, *lay_out(tmp_path, *laid)) == wanted


@pytest.mark.skipif(os.geteuid() != 0, reason="control groups need root")
def test_the_kernels_own_group_is_found(program: Path, tmp_path: Path) -> None:
    here = ("/proc/self/cgroup", "/proc/self/mountinfo")
    before = limits(program, *here)[0]
    with control_group("cpu", {"cpu.max": "100000 100000"}, {"cpu.cfs_quota_us": "100000"},
                       tmp_path) as inside:
        assert limits(program, *here, inside)[0] == 1
    assert limits(program, *here)[0] == before


def test_files_that_are_not_there_limit_nothing(program: Path, tmp_path: Path) -> None:
    assert limits(program, tmp_path / "no", tmp_path / "none") == (NO_QUOTA, 0)
    assert memory(program, tmp_path / "no", tmp_path / "none") == NO_LIMIT
