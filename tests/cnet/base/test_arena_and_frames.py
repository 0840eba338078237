"""An engine's memory and its frames."""

import os
import re
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.c_programs import SANITIZED, build, library, run
from lab.control_groups import control_group
from tests.support import PATIENCE_S, ROOT

HUGE_PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")


def test_arena(tmp_path):
    program = build(tmp_path / "arena", ["tests/cnet/base/test_arena.c", str(library())])
    lines = run(program).splitlines()
    assert all(line.startswith("memory: ") for line in lines)


@contextmanager
def free_huge_pages(number):
    before = int(HUGE_PAGES.read_text())
    HUGE_PAGES.write_text(str(before + number))
    try:
        assert int(HUGE_PAGES.read_text()) > before, "the kernel has no memory for huge pages"
        yield
    finally:
        HUGE_PAGES.write_text(str(before))


@pytest.mark.skipif(os.geteuid() != 0, reason="control groups need root")
def test_huge_pages_that_the_group_may_not_use_are_no_signal(tmp_path):
    """As in a pod without an allowance, on kernels before 5.14 as on this one."""
    (tmp_path / "groups").mkdir()
    with free_huge_pages(8), control_group("hugetlb", {"hugetlb.2MB.max": "0"},
                                           {"hugetlb.2MB.limit_in_bytes": "0"},
                                           tmp_path / "groups") as inside:
        for kernel in (["-DHARP_POPULATE_WRITE=1000"], []):
            program = build(tmp_path / "arena", ["tests/cnet/base/test_arena.c",
                                                 "cnet/base/arena.c"], [*SANITIZED, *kernel])
            done = subprocess.run([*inside, program], capture_output=True, text=True,
                                  timeout=PATIENCE_S, check=False)
            assert done.returncode == 0, done.stderr
            assert all("ordinary pages" in line for line in done.stdout.splitlines())
            assert run(program), "without the group"


def test_frames_and_the_table_in_their_manual(tmp_path):
    printed = run(build(tmp_path / "frames", ["tests/cnet/base/test_frames.c", str(library())]))
    in_code = {tuple(line.split()) for line in printed.splitlines()}
    manual = (ROOT / "cnet" / "base" / "frames.h").read_text()
    rows = re.findall(r"^ \*     ([A-Z]+)  .*?((?: [A-Z]{4,})+)$", manual, re.MULTILINE)
    assert len(rows) == 9
    assert {(state, to) for state, behind in rows for to in behind.split()} == in_code
