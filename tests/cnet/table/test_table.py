"""The table in C under sanitizers, against an array of what each key must have."""

from __future__ import annotations

import pytest

from lab.c_programs import RACES, SANITIZED, build, library, run
from tests.support.levels import long_except

QUICK, ALL = 100_000, 1_000_000


@pytest.mark.parametrize(("sanitizer", "threads", "operations"), long_except(
    [("asan", 4, QUICK), ("tsan", 4, QUICK), ("asan", 1, ALL), ("tsan", 4, ALL)],
    ("asan", 4, QUICK)))
def test_random_calls_against_an_array(tmp_path, sanitizer, threads, operations):
    flags = {"asan": SANITIZED, "tsan": RACES}[sanitizer]
    program = build(tmp_path / "table", ["tests/cnet/table/test_table.c", str(library(flags))],
                    [*flags, "-Wl,--no-as-needed", "-lm"])
    run(program, str(threads), str(operations), str(tmp_path))
